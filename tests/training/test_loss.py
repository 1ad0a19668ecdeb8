"""The chunked, sharded loss against the plain one."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from muster.sharding.mesh import Layout
from muster.sharding.rules import BATCH_AXES, SHARD_AXES
from muster.sharding.torus import Piece
from muster.training.exchange import TOKEN_AXES, gather_tokens, present, whole_weight
from muster.training.loss import LossSums, _Softmax, cross_entropy, logits
from muster.training.mesh import make_mesh
from muster.training.partition import Partition
from muster.training.parts import TILE

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


# How the model leaves x to the loss, how a head is held, and the targets with their weights.
STATES = P(BATCH_AXES, ("sequence", "tensor"))
HEAD = P(SHARD_AXES, "tensor")
TOKENS = P(BATCH_AXES, "sequence")
SPECS = (STATES, HEAD, TOKENS, TOKENS)


def place_of(layout: Layout) -> Partition:
    return Partition(mesh=make_mesh(layout), layout=layout)


def on(place: Partition, *arrays: jax.Array) -> Arrays:
    x, head, targets, weights = (
        jax.device_put(array, NamedSharding(place.mesh, spec))
        for array, spec in zip(arrays, SPECS, strict=True)
    )
    return x, head, targets, weights


def sums_on_chip(
    x_BtD: jax.Array, head: jax.Array, *rest: jax.Array, place: Partition, **how: Any
) -> LossSums:
    """The loss as a step calls it: one chip's tokens gathered, and its columns of the head."""
    head_DV = whole_weight(head, (present(place, SHARD_AXES), ()), place, x_BtD.dtype)
    return cross_entropy(gather_tokens(x_BtD, place), head_DV, *rest, place=place, **how)


def loss(place: Partition, **how: Any) -> Callable[..., LossSums]:
    """Sums of whole arrays [B, T, D], [D, V], [B, T], [B, T]."""
    on_chip = partial(sums_on_chip, place=place, **how)
    mapped: Callable[..., LossSums] = jax.shard_map(
        on_chip, mesh=place.mesh, in_specs=SPECS, out_specs=P(), check_vma=False
    )
    return mapped


def total(sums: LossSums) -> jax.Array:
    return sums.total


def loss_and_gradients(
    place: Partition, of: Callable[[LossSums], jax.Array] = total, **how: Any
) -> Callable[..., tuple[LossSums, tuple[jax.Array, jax.Array]]]:
    """Sums, and the gradients of a scalar of them by x and the head, of whole arrays.

    As in a step, the gradients are taken within the map, and what chips that hold the same shard of
    the head found is added up.
    """
    alike = tuple(axis for axis in present(place, TOKEN_AXES) if axis not in SHARD_AXES)

    def on_chip(*arrays: jax.Array) -> tuple[LossSums, tuple[jax.Array, jax.Array]]:
        def scalar(x: jax.Array, head: jax.Array) -> tuple[jax.Array, LossSums]:
            sums = sums_on_chip(x, head, *arrays[2:], place=place, **how)
            return of(sums), sums

        (by_x, by_head), sums = jax.grad(scalar, argnums=(0, 1), has_aux=True)(*arrays[:2])
        return sums, (by_x, lax.psum(by_head, alike) if alike else by_head)

    mapped: Callable[..., tuple[LossSums, tuple[jax.Array, jax.Array]]] = jax.shard_map(
        on_chip,
        mesh=place.mesh,
        in_specs=SPECS,
        out_specs=(P(), (STATES, HEAD)),
        check_vma=False,
    )
    return mapped


def gradients(place: Partition, **how: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Gradients of the total alone."""
    both = loss_and_gradients(place, **how)
    return lambda *arrays: both(*arrays)[1]


def close(actual: Any, wanted: Any) -> None:
    """Within 1e-6 of the largest: float32 sums in another order."""
    wanted = np.asarray(wanted)
    scale = max(np.abs(wanted).max(), 1e-30)
    np.testing.assert_allclose(np.asarray(actual) / scale, wanted / scale, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_equals_the_naive_loss_and_its_gradients(layout: Layout, z_loss: float) -> None:
    arrays = inputs()
    place = place_of(layout)
    want, want_grads = jax.value_and_grad(
        partial(naive, vocab_size=V, z_loss=z_loss), argnums=(0, 1)
    )(*arrays)
    # 5 tokens a chunk divide no chip's share.
    differentiate = loss_and_gradients(place, vocab_size=V, z_loss=z_loss, chunk_tokens=5)
    sums, grads = jax.jit(differentiate)(*on(place, *arrays))
    close(sums.total, want)
    close(grads[0], want_grads[0])
    close(grads[1], want_grads[1])
    close(sums.nll + z_loss * sums.z, want)
    assert float(sums.weights) == float(arrays[3].sum())
    likeliest = logits(*arrays[:2]).argmax(-1) == arrays[2]
    assert float(sums.correct) == float((arrays[3] * likeliest).sum())
    without_gradient = jax.jit(loss(place, vocab_size=V, z_loss=z_loss))(*on(place, *arrays))
    close(without_gradient.total, want)


@pytest.mark.parametrize("layout", [Layout(), Layout(tensor=8), Layout(fsdp=2, tensor=4)], ids=str)
@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "accelerator"])
def test_padded_words_have_no_probability(
    layout: Layout, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 8 tensor ways the last chips hold nothing but padding."""
    monkeypatch.setattr(_Softmax, "on_cpu", on_cpu)
    vocab_size = 33
    x, head, targets, weights = inputs(words=56, vocab_size=vocab_size)
    head = head.at[:, vocab_size:].set(100.0)

    def wanted(x: jax.Array, head: jax.Array) -> jax.Array:
        return naive(x, head, targets, weights, vocab_size=vocab_size, z_loss=0.0)

    differentiate = loss_and_gradients(place_of(layout), vocab_size=vocab_size)
    sums, grads = jax.jit(differentiate)(x, head, targets, weights)
    want, want_grads = jax.value_and_grad(wanted, argnums=(0, 1))(x, head)
    close(sums.total, want)
    close(grads[0], want_grads[0])
    close(grads[1], want_grads[1])
    assert not np.any(grads[1][:, vocab_size:])


def test_nothing_to_predict_gives_zeros() -> None:
    x, head, targets, weights = inputs()
    place = place_of(Layout(fsdp=2, tensor=2))
    differentiate = loss_and_gradients(place, vocab_size=V)
    sums, grads = jax.jit(differentiate)(x, head, targets, 0 * weights)
    assert float(sums.total) == 0
    assert not np.any(grads[0])
    assert not np.any(grads[1])


def test_the_cotangent_scales_the_gradients() -> None:
    x, head, targets, weights = inputs()
    place = place_of(Layout(fsdp=2, tensor=2))

    def wanted(x: jax.Array, head: jax.Array) -> jax.Array:
        return naive(x, head, targets, weights, vocab_size=V, z_loss=0.0) / weights.sum()

    mean = loss_and_gradients(place, lambda sums: sums.total / sums.weights, vocab_size=V)
    _, grads = jax.jit(mean)(x, head, targets, weights)
    for got, want in zip(grads, jax.grad(wanted, argnums=(0, 1))(x, head), strict=True):
        close(got, want)


def test_bfloat16_stays_near_float32_and_keeps_dtypes() -> None:
    """A float32 head is rounded for the matmuls; its gradient comes back in float32.

    Each chip's part of it was rounded too, as the parts of every weight's are, before it was sent.
    """
    x, head, targets, weights = inputs()
    place = place_of(Layout(fsdp=2, tensor=2))
    x16 = x.astype(jnp.bfloat16)
    differentiate = loss_and_gradients(place, vocab_size=V)
    sums, grads = jax.jit(differentiate)(x16, head, targets, weights)
    rounded = x16.astype(jnp.float32), head.astype(jnp.bfloat16).astype(jnp.float32)
    want, want_grads = jax.value_and_grad(
        lambda x, head: naive(x, head, targets, weights, vocab_size=V, z_loss=0.0), argnums=(0, 1)
    )(*rounded)
    assert (grads[0].dtype, grads[1].dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(sums.total, want, rtol=1e-5)
    # p - onehot is rounded to 8 bits of mantissa before the two matmuls, and what they give after.
    for value, exact in zip(grads, want_grads, strict=True):
        error = np.abs(np.asarray(value, np.float32) - exact).max()
        assert error < 2**-7 * np.abs(exact).max()


def test_a_gradient_is_summed_over_chunks_before_it_is_rounded() -> None:
    """In chunks of one token as near as in one chunk."""
    x, head, targets, weights = inputs(jnp.bfloat16)
    place = place_of(Layout())
    exact = jax.grad(partial(naive, vocab_size=V, z_loss=0.0), argnums=1)(
        x.astype(jnp.float32), head.astype(jnp.float32), targets, weights
    )
    for chunk_tokens in (1, B * T):
        differentiate = gradients(place, vocab_size=V, chunk_tokens=chunk_tokens)
        _, by_head = jax.jit(differentiate)(x, head, targets, weights)
        assert by_head.dtype == jnp.bfloat16
        error = np.abs(np.asarray(by_head, np.float32) - exact).max()
        assert error < 2**-8 * np.abs(exact).max()


def test_collectives_are_one_gather_and_one_scatter_of_the_head() -> None:
    """Whatever the number of chunks."""
    place = place_of(Layout(data=2, fsdp=2, sequence=2))
    differentiate = gradients(place, vocab_size=V, chunk_tokens=3)
    text = jax.jit(differentiate).lower(*on(place, *inputs())).compile().as_text()
    assert text is not None
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 1
    assert len(re.findall(r" reduce-scatter(?:-start)?\(", text)) == 1
    # The head's rows over `data`; the loss itself is not asked for.
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1


def test_three_matmuls() -> None:
    """As many FLOPs as x W and its two gradients need, within 5% for what lies between."""
    d_model, words, tokens = 512, 1024, 256
    x = jax.ShapeDtypeStruct((1, tokens, d_model), jnp.float32)
    head = jax.ShapeDtypeStruct((d_model, words), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    weights = jax.ShapeDtypeStruct((1, tokens), jnp.float32)
    differentiate = loss_and_gradients(place_of(Layout()), vocab_size=words)
    compiled = jax.jit(differentiate).lower(x, head, ids, weights).compile()
    flops = (compiled.cost_analysis() or {})["flops"]
    matmul = 2 * tokens * d_model * words
    assert 3 * matmul <= flops < 3.05 * matmul


def test_logits_of_8192_tokens_are_never_whole() -> None:
    """8192 x 128,256 float32 logits are 4.2 GB; a chunk's worth and the head's gradient are not."""
    words, d_model = 128_256, 64
    x = jax.ShapeDtypeStruct((2, 4096, d_model), jnp.bfloat16)
    head = jax.ShapeDtypeStruct((d_model, words), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((2, 4096), jnp.int32)
    weights = jax.ShapeDtypeStruct((2, 4096), jnp.float32)
    differentiate = loss_and_gradients(place_of(Layout()), vocab_size=words)
    memory = jax.jit(differentiate).lower(x, head, ids, weights).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 0.3e9


def test_a_head_whose_gradient_is_in_parts() -> None:
    """As on a torus of two axes: 5 tiles of words in parts of 4 and 1."""
    torus = {"sequence": (Piece(1, 2, 2, 1), Piece(0, 2, 2, 1))}
    layout = Layout()
    place = Partition(mesh=make_mesh(layout), layout=layout, pieces=torus, gathers_at_once=True)
    words = 5 * TILE
    assert place.parts((D, words)) == (4 * TILE, TILE)
    x, head, targets, weights = inputs(words=words, vocab_size=words)

    def total(x: jax.Array, head: jax.Array) -> jax.Array:
        sums = jax.shard_map(
            partial(cross_entropy, place=place, vocab_size=words, chunk_tokens=40),
            mesh=place.mesh,
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        )(x, head, targets, weights)
        return sums.total

    got = jax.grad(total, argnums=(0, 1))(x, head)
    plain = partial(naive, targets_BT=targets, weights_BT=weights, vocab_size=words, z_loss=0.0)
    for one, expected in zip(got, jax.grad(plain, argnums=(0, 1))(x, head), strict=True):
        np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)
