"""The chunked, sharded loss against the plain one."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.sharding.mesh import Layout
from muster.sharding.rules import BATCH_AXES, SHARD_AXES
from muster.training.loss import LossSums, _How, cross_entropy, logits
from muster.training.partition import make_mesh

type Arrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

B, T, D, V = 8, 16, 16, 52
LAYOUTS = [
    Layout(),
    Layout(data=8),
    Layout(fsdp=8),
    Layout(tensor=4),
    Layout(sequence=2, fsdp=2, tensor=2),
    Layout(slice=2, sequence=4),
    Layout(expert=2, data=2, tensor=2),
    Layout(stage=2, fsdp=2, tensor=2),
]


def inputs(dtype: Any = jnp.float32, *, words: int = V, vocab_size: int = V) -> Arrays:
    keys = jax.random.split(jax.random.key(0), 4)
    x_BTD = jax.random.normal(keys[0], (B, T, D)).astype(dtype)
    head_DV = jax.random.normal(keys[1], (D, words)).astype(dtype)
    targets_BT = jax.random.randint(keys[2], (B, T), 0, vocab_size)
    weights_BT = jax.random.randint(keys[3], (B, T), 0, 3).astype(jnp.float32)
    return x_BTD, head_DV, targets_BT, weights_BT


def naive(
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    *,
    vocab_size: int,
    z_loss: float,
) -> jax.Array:
    all_BTV = jnp.einsum("btd,dv->btv", x_BTD, head_DV[:, :vocab_size])
    log_norm_BT = jax.nn.logsumexp(all_BTV, axis=-1)
    target_BT = jnp.take_along_axis(all_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return jnp.sum(weights_BT * (log_norm_BT - target_BT + z_loss * log_norm_BT**2))


def on(mesh: Mesh, *arrays: jax.Array) -> Arrays:
    put = [P(BATCH_AXES, "sequence"), P(SHARD_AXES, "tensor"), *[P(BATCH_AXES, "sequence")] * 2]
    x, head, targets, weights = (
        jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arrays, put, strict=True)
    )
    return x, head, targets, weights


def close(actual: Any, wanted: Any) -> None:
    """Within 1e-6 of the largest: float32 sums in another order."""
    wanted = np.asarray(wanted)
    scale = max(np.abs(wanted).max(), 1e-30)
    np.testing.assert_allclose(np.asarray(actual) / scale, wanted / scale, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_equals_the_naive_loss_and_its_gradients(layout: Layout, z_loss: float) -> None:
    arrays = inputs()
    mesh = make_mesh(layout)
    want, want_grads = jax.value_and_grad(
        partial(naive, vocab_size=V, z_loss=z_loss), argnums=(0, 1)
    )(*arrays)

    def total(*a: jax.Array) -> tuple[jax.Array, LossSums]:
        # 5 tokens a chunk divide no chip's share.
        sums = cross_entropy(*a, mesh=mesh, vocab_size=V, z_loss=z_loss, chunk_tokens=5)
        return sums.total, sums

    (got, sums), grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(
        *on(mesh, *arrays)
    )
    close(got, want)
    close(grads[0], want_grads[0])
    close(grads[1], want_grads[1])
    close(sums.nll + z_loss * sums.z, want)
    assert float(sums.weights) == float(arrays[3].sum())
    likeliest = logits(*arrays[:2], vocab_size=V).argmax(-1) == arrays[2]
    assert float(sums.correct) == float((arrays[3] * likeliest).sum())
    without_gradient = cross_entropy(*arrays, mesh=mesh, vocab_size=V, z_loss=z_loss)
    close(without_gradient.total, want)


@pytest.mark.parametrize("layout", [Layout(), Layout(tensor=8), Layout(fsdp=2, tensor=4)], ids=str)
@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "accelerator"])
def test_padded_words_have_no_probability(
    layout: Layout, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 tensor ways the last chips hold nothing but padding."""
    monkeypatch.setattr(_How, "on_cpu", on_cpu)
    vocab_size = 33
    x, head, targets, weights = inputs(words=56, vocab_size=vocab_size)
    head = head.at[:, vocab_size:].set(100.0)
    mesh = make_mesh(layout)

    def total(x: jax.Array, head: jax.Array) -> jax.Array:
        return cross_entropy(x, head, targets, weights, mesh=mesh, vocab_size=vocab_size).total

    def wanted(x: jax.Array, head: jax.Array) -> jax.Array:
        return naive(x, head, targets, weights, vocab_size=vocab_size, z_loss=0.0)

    got, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(x, head)
    want, want_grads = jax.value_and_grad(wanted, argnums=(0, 1))(x, head)
    close(got, want)
    close(grads[0], want_grads[0])
    close(grads[1], want_grads[1])
    assert not np.any(grads[1][:, vocab_size:])


def test_nothing_to_predict_gives_zeros() -> None:
    x, head, targets, weights = inputs()
    mesh = make_mesh(Layout(fsdp=2, tensor=2))

    def total(x: jax.Array, head: jax.Array) -> jax.Array:
        return cross_entropy(x, head, targets, 0 * weights, mesh=mesh, vocab_size=V).total

    got, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(x, head)
    assert float(got) == 0
    assert not np.any(grads[0])
    assert not np.any(grads[1])


def test_the_cotangent_scales_the_gradients() -> None:
    x, head, targets, weights = inputs()
    mesh = make_mesh(Layout(fsdp=2, tensor=2))

    def mean(x: jax.Array, head: jax.Array) -> jax.Array:
        sums = cross_entropy(x, head, targets, weights, mesh=mesh, vocab_size=V)
        return sums.total / sums.weights

    def wanted(x: jax.Array, head: jax.Array) -> jax.Array:
        return naive(x, head, targets, weights, vocab_size=V, z_loss=0.0) / weights.sum()

    grads = jax.jit(jax.grad(mean, argnums=(0, 1)))(x, head)
    for got, want in zip(grads, jax.grad(wanted, argnums=(0, 1))(x, head), strict=True):
        close(got, want)


def test_bfloat16_stays_near_float32_and_keeps_dtypes() -> None:
    """A float32 head is rounded for the matmuls; its gradient comes back in float32."""
    x, head, targets, weights = inputs()
    mesh = make_mesh(Layout(fsdp=2, tensor=2))

    def total(x: jax.Array, head: jax.Array) -> jax.Array:
        return cross_entropy(x, head, targets, weights, mesh=mesh, vocab_size=V).total

    x16 = x.astype(jnp.bfloat16)
    got, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(x16, head)
    rounded = x16.astype(jnp.float32), head.astype(jnp.bfloat16).astype(jnp.float32)
    want, want_grads = jax.value_and_grad(
        lambda x, head: naive(x, head, targets, weights, vocab_size=V, z_loss=0.0), argnums=(0, 1)
    )(*rounded)
    assert (grads[0].dtype, grads[1].dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # p - onehot is rounded to 8 bits of mantissa before the two matmuls.
    for value, exact in zip(grads, want_grads, strict=True):
        error = np.abs(np.asarray(value, np.float32) - exact).max()
        assert error < 2**-7 * np.abs(exact).max()


def test_collectives_are_one_gather_and_one_scatter_of_the_head() -> None:
    """Whatever the number of chunks."""
    mesh = make_mesh(Layout(data=2, fsdp=2, sequence=2))
    arrays = on(mesh, *inputs())

    def total(*a: jax.Array) -> jax.Array:
        return cross_entropy(*a, mesh=mesh, vocab_size=V, chunk_tokens=3).total

    text = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*arrays).compile().as_text()
    assert text is not None
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 1
    assert len(re.findall(r" reduce-scatter(?:-start)?\(", text)) == 1
    # The head's rows over `data`; the loss itself is not asked for.
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1


def test_three_matmuls() -> None:
    """As many FLOPs as x W and its two gradients need, within 5% for what lies between."""
    mesh = make_mesh(Layout())
    d_model, words, tokens = 512, 1024, 256
    x = jax.ShapeDtypeStruct((1, tokens, d_model), jnp.float32)
    head = jax.ShapeDtypeStruct((d_model, words), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    weights = jax.ShapeDtypeStruct((1, tokens), jnp.float32)

    def total(*a: jax.Array) -> jax.Array:
        return cross_entropy(*a, mesh=mesh, vocab_size=words).total

    compiled = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(x, head, ids, weights)
    flops = (compiled.compile().cost_analysis() or {})["flops"]
    matmul = 2 * tokens * d_model * words
    assert 3 * matmul <= flops < 3.05 * matmul


def test_logits_of_8192_tokens_are_never_whole() -> None:
    """8192 x 128,256 float32 logits are 4.2 GB; a chunk's worth and the head's gradient are not."""
    mesh = make_mesh(Layout())
    words, d_model = 128_256, 64
    x = jax.ShapeDtypeStruct((2, 4096, d_model), jnp.bfloat16)
    head = jax.ShapeDtypeStruct((d_model, words), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((2, 4096), jnp.int32)
    weights = jax.ShapeDtypeStruct((2, 4096), jnp.float32)

    def total(*a: jax.Array) -> jax.Array:
        return cross_entropy(*a, mesh=mesh, vocab_size=words).total

    lowered = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(x, head, ids, weights)
    memory = lowered.compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.3e9
