"""Saving and restoring in one process: bits, meshes, dtypes, padding, other models, memory."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.training.checkpoints import Checkpoints, bytes_of
from muster.training.params import Params

V, L, D, F = 30, 2, 16, 24  # words, layers, d_model, d_ff
META = {"plan": {"batch": 4}, "config": {"vocab_size": V}, "versions": {"muster": "0"}}
SPECS = {
    "embedding": P("tensor", "fsdp"),
    "layers.mlp.gate": P(None, "fsdp", "tensor"),
    "layers.norm_0": P(None, "fsdp"),
    "head": P("fsdp", "tensor"),
}


def mesh_of(fsdp: int, tensor: int) -> Mesh:
    devices = np.asarray(jax.devices()[: fsdp * tensor]).reshape(fsdp, tensor)
    return Mesh(devices, ("fsdp", "tensor"))


def shapes_of(padded: int = 32, d_ff: int = F) -> dict[str, tuple[int, ...]]:
    return {
        "embedding": (padded, D),
        "layers.mlp.gate": (L, D, d_ff),
        "layers.norm_0": (L, D),
        "head": (D, padded),
    }


def params_on(mesh: Mesh, *, padded: int = 32, dtype: Any = jnp.float32, seed: int = 0) -> Params:
    params = {}
    for i, (name, shape) in enumerate(shapes_of(padded).items()):
        values = np.random.default_rng((seed, i)).standard_normal(
            tuple(V if size == padded else size for size in shape)
        )
        padding = [(0, size - real) for size, real in zip(shape, values.shape, strict=True)]
        array = jnp.asarray(np.pad(values, padding), dtype)
        params[name] = jax.device_put(array, NamedSharding(mesh, SPECS[name]))
    return params


def optimizer() -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def state_on(mesh: Mesh, params: Params) -> Any:
    """The optimizer's state after one update, so that nothing in it is zero but padding."""
    tx = optimizer()
    state = jax.jit(tx.init)(params)
    _, state = jax.jit(tx.update)(params, state, params)
    return jax.tree.map(lambda leaf: jax.device_put(leaf, _like(leaf, params, mesh)), state)


def _like(leaf: jax.Array, params: Params, mesh: Mesh) -> NamedSharding:
    specs = {params[name].shape: spec for name, spec in SPECS.items()}
    return NamedSharding(mesh, specs.get(leaf.shape, P()))


def abstract(tree: Any, mesh: Mesh, dtype: Any = None) -> Any:
    def one(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        assert isinstance(leaf.sharding, NamedSharding)
        kept = leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.integer) else dtype or leaf.dtype
        sharding = NamedSharding(mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, kept, sharding=sharding)

    return jax.tree.map(one, tree)


def assert_same_bits(tree: Any, expected: Any) -> None:
    assert str(jax.tree.structure(tree)) == str(jax.tree.structure(expected))
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype
        assert np.asarray(leaf).tobytes() == np.asarray(other).tobytes()


POSITIONS = np.array([5, 2**40, 7, 0], np.int64)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("ways", [(8, 1), (1, 8), (2, 4), (1, 1)])
def test_a_state_comes_back_bit_for_bit_on_any_mesh(
    tmp_path: Path, dtype: Any, ways: tuple[int, int]
) -> None:
    mesh = mesh_of(4, 2)
    params = params_on(mesh, dtype=dtype)
    state = state_on(mesh, params)
    with Checkpoints(tmp_path / "checkpoints") as saved:
        saved.save(7, params=params, optimizer=state, data=POSITIONS, meta=META)
    other = mesh_of(*ways)
    restored = Checkpoints(tmp_path / "checkpoints").restore(
        abstract(params, other), abstract(state, other)
    )
    assert restored.step == 7
    assert restored.meta == META
    assert restored.skipped == restored.casts == ()
    assert restored.data is not None
    assert restored.data.dtype == np.int64
    np.testing.assert_array_equal(restored.data, POSITIONS)
    assert_same_bits(restored.params, params)
    assert_same_bits(restored.optimizer, state)
    for name, array in restored.params.items():
        assert array.sharding == NamedSharding(other, SPECS[name])


def test_buffers_may_be_donated_and_overwritten_as_soon_as_save_returns(tmp_path: Path) -> None:
    mesh = mesh_of(4, 2)
    params = params_on(mesh)
    expected = {name: np.array(array) for name, array in params.items()}
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, meta=META)
        for _ in range(5):
            params = step(params)
        jax.block_until_ready(params)
    restored = saved.restore(abstract(params, mesh))
    assert_same_bits(restored.params, expected)


def test_weights_alone_are_restored_alone_and_known_as_such(tmp_path: Path) -> None:
    mesh = mesh_of(4, 2)
    params = params_on(mesh)
    state = state_on(mesh, params)
    with Checkpoints(tmp_path) as saved:
        saved.save(0, params=params, meta=META)
        saved.save(1, params=params, optimizer=state, data=POSITIONS, meta=META)
    imported = saved.restore(abstract(params, mesh), abstract(state, mesh), step=0)
    assert imported.optimizer is None
    assert imported.data is None
    assert_same_bits(imported.params, params)
    alone = saved.restore(abstract(params, mesh))
    assert alone.step == 1
    assert alone.optimizer is None
    assert_same_bits(alone.params, params)


def test_some_weights_can_be_read_one_by_one_without_a_mesh(tmp_path: Path) -> None:
    params = params_on(mesh_of(4, 2))
    with Checkpoints(tmp_path) as saved:
        saved.save(3, params=params, meta=META)
    shapes = saved.shapes()
    assert {name: leaf.shape for name, leaf in shapes.items()} == shapes_of()
    for name, leaf in shapes.items():
        one = saved.restore({name: leaf}, part=True).params
        assert_same_bits(one, {name: params[name]})
        assert len(one[name].devices()) == 1


def test_an_optimizer_without_arrays_is_no_missing_optimizer(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    params = params_on(mesh)
    empty = optax.sgd(0.1).init(params)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, optimizer=empty, meta=META)
    restored = saved.restore(abstract(params, mesh), empty)
    assert restored.optimizer is not None
    assert str(jax.tree.structure(restored.optimizer)) == str(jax.tree.structure(empty))


@pytest.mark.parametrize("padded", [30, 31, 40])
def test_padding_of_the_vocabulary_may_differ(tmp_path: Path, padded: int) -> None:
    mesh, one = mesh_of(4, 2), mesh_of(1, 1)
    params = params_on(mesh)
    state = state_on(mesh, params)
    with Checkpoints(tmp_path, vocab_size=V) as saved:
        saved.save(1, params=params, optimizer=state, meta=META)
    expected = params_on(one, padded=padded)
    wanted = abstract(expected, one)
    restored = saved.restore(wanted, abstract(state_on(one, expected), one))
    assert_same_bits(restored.params, expected)
    mu = restored.optimizer[1][0].mu
    real = np.asarray(state[1][0].mu["embedding"])[:V]
    assert np.asarray(mu["embedding"])[:V].tobytes() == real.tobytes()
    assert mu["embedding"].shape == (padded, D)
    assert not np.asarray(mu["embedding"])[V:].any()


def test_padding_may_not_differ_where_the_vocabulary_does_or_is_unknown(tmp_path: Path) -> None:
    one = mesh_of(1, 1)
    params = params_on(one)
    with Checkpoints(tmp_path / "a", vocab_size=V) as saved:
        saved.save(1, params=params, meta=META)
    for vocab_size, why in [(31, "30 words, this one 31"), (None, r"float32\[32, 16\] there")]:
        with pytest.raises(BadInput, match=why):
            Checkpoints(tmp_path / "a", vocab_size=vocab_size).restore(
                abstract(params_on(one, padded=31), one)
            )


def test_dtypes_are_cast_and_it_is_said(tmp_path: Path) -> None:
    mesh = mesh_of(4, 2)
    params = params_on(mesh)
    state = state_on(mesh, params)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, optimizer=state, meta=META)
    restored = saved.restore(
        abstract(params, mesh, jnp.bfloat16), abstract(state, mesh, jnp.bfloat16)
    )
    assert restored.casts == (
        "params: 4 arrays cast from float32 to bfloat16",
        "optimizer: 8 arrays cast from float32 to bfloat16",
    )
    assert_same_bits(restored.params, {k: v.astype(jnp.bfloat16) for k, v in params.items()})


def test_a_checkpoint_of_another_model_names_what_differs(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    params = params_on(mesh)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, meta=META)
    other = abstract(params, mesh)
    other["layers.mlp.gate"] = jax.ShapeDtypeStruct((L, D, 48), jnp.float32)
    other["layers.mlp.up"] = other["layers.mlp.gate"]
    del other["head"]
    with pytest.raises(BadInput) as caught:
        saved.restore(other)
    assert str(caught.value) == (
        f"checkpoint {tmp_path / '1'} is of another model: layers.mlp.gate is float32[2, 16, 24]"
        " there and float32[2, 16, 48] here; layers.mlp.up is missing there; head is only there"
    )


def test_another_optimizer_is_named(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    params = params_on(mesh)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, optimizer=state_on(mesh, params), meta=META)
    with pytest.raises(BadInput, match=r"optimizer state of .* is of another optimizer: 0/trace/"):
        saved.restore(abstract(params, mesh), optax.sgd(0.1, momentum=0.9).init(params))


def test_old_steps_go_and_multiples_stay(tmp_path: Path) -> None:
    params = params_on(mesh_of(1, 1))
    with Checkpoints(tmp_path, keep_last=2, keep_every=4) as saved:
        for step in range(1, 8):
            saved.save(step, params=params, meta=META)
    assert saved.steps() == [4, 6, 7]
    assert saved.latest() == 7


def test_synchronous_saves_are_on_disk_at_once_and_saving_twice_is_once(tmp_path: Path) -> None:
    params = params_on(mesh_of(1, 1))
    saved = Checkpoints(tmp_path, asynchronous=False)
    saved.save(1, params=params, meta=META)
    assert Checkpoints(tmp_path).latest() == 1
    saved.save(1, params=params, meta=META)
    saved.close()


def test_a_folder_of_another_run_is_not_written_into(tmp_path: Path) -> None:
    params = params_on(mesh_of(1, 1))
    with Checkpoints(tmp_path) as saved:
        saved.save(200, params=params, meta=META)
    with pytest.raises(BadInput, match="already holds step 200"):
        Checkpoints(tmp_path).save(100, params=params, meta=META)


def test_going_back_sets_later_steps_aside(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    params = params_on(mesh)
    with Checkpoints(tmp_path) as saved:
        for step in (1, 2, 3):
            saved.save(step, params=params, meta=META)
    with Checkpoints(tmp_path, keep_last=2) as again:
        assert again.restore(abstract(params, mesh), step=1).step == 1
        again.save(2, params=params_on(mesh, seed=1), meta=META)
    assert again.steps() == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2", "2.aside", "3.aside"}
    assert_same_bits(again.restore(abstract(params, mesh)).params, params_on(mesh, seed=1))


def test_a_run_that_is_under_way_can_go_back_too(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    with Checkpoints(tmp_path) as saved:
        for step in (1, 2):
            saved.save(step, params=params_on(mesh, seed=step), meta=META)
        restored = saved.restore(abstract(params_on(mesh), mesh), step=1)
        assert_same_bits(restored.params, params_on(mesh, seed=1))
        saved.save(2, params=params_on(mesh, seed=3), meta=META)
    assert saved.steps() == [1, 2]
    assert_same_bits(saved.restore(abstract(params_on(mesh), mesh)).params, params_on(mesh, seed=3))


def test_no_checkpoint_and_no_such_step_are_said(tmp_path: Path) -> None:
    mesh = mesh_of(1, 1)
    params = params_on(mesh)
    with pytest.raises(BadInput, match="there is no checkpoint in"):
        Checkpoints(tmp_path / "none").restore(abstract(params, mesh))
    assert Checkpoints(tmp_path / "none").latest() is None
    with Checkpoints(tmp_path) as saved:
        saved.save(4, params=params, meta=META)
    with pytest.raises(BadInput, match=r"there is no step 5 in .*; there is 4$"):
        saved.restore(abstract(params, mesh), step=5)


def test_meta_is_read_without_arrays(tmp_path: Path) -> None:
    params = params_on(mesh_of(1, 1))
    with Checkpoints(tmp_path) as saved:
        saved.save(4, params=params, meta=META)
    assert Checkpoints(tmp_path).meta() == json.loads(json.dumps(META))


def test_bytes_of_counts_abstract_arrays() -> None:
    tree = {"a": jax.ShapeDtypeStruct((3, 4), jnp.bfloat16), "b": np.zeros(2, np.int64)}
    assert bytes_of(tree, (tree["b"],)) == 24 + 16 + 16
