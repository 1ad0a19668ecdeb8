"""Attention over meshes: the same values and gradients, balanced work, no whole scores."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.training.attention import Masking, blockwise, reference
from muster.training.attention.context import _pairs, balanced_order, gathered
from muster.training.attention.signature import Attend
from muster.training.mesh import make_mesh
from tests.training.attention.cases import equals_reference, inputs, packed
from tests.training.attention.on_mesh import on_mesh

LAYOUTS = [
    (Layout(data=8), 4, 2),
    (Layout(fsdp=2, expert=2, tensor=2), 4, 2),
    (Layout(sequence=8), 4, 4),
    (Layout(sequence=2, tensor=4), 8, 2),
    (Layout(data=2, sequence=2, tensor=2), 4, 2),
    (Layout(fsdp=2, sequence=4), 4, 1),
]


def naturally(mesh_attend: Attend, ways: int, T: int) -> Attend:
    """Attention that permutes the row, and its answer back."""
    order = balanced_order(T, ways)
    back = np.argsort(order)

    def attend(*qkv: jax.Array, mask: Masking, scale: float) -> jax.Array:
        permuted = Masking(segments=mask.segments[:, order], window=mask.window)
        return mesh_attend(*(x[:, order] for x in qkv), mask=permuted, scale=scale)[:, back]

    return attend


@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize(("layout", "N", "K"), LAYOUTS, ids=str)
def test_equals_the_reference(layout: Layout, N: int, K: int, window: int | None) -> None:
    mesh, T = make_mesh(layout), 64
    mask = Masking(segments=packed(8, T), window=window)
    ways = layout.sequence
    on_chip = gathered(ways, block=4) if ways > 1 else partial(blockwise.attend, block=16)
    attend = naturally(on_mesh(on_chip, mesh), ways, T)
    equals_reference(attend, inputs(8, T, N, K, 8), mask)


def test_the_reference_runs_over_a_mesh_with_an_order() -> None:
    mask = Masking(segments=packed(8, 32), order=jnp.arange(32)[::-1])
    mesh = make_mesh(Layout(data=2, tensor=4))
    equals_reference(on_mesh(reference.attend, mesh), inputs(8, 32, 4, 2, 8), mask)


def test_no_gradient_from_the_future_nor_from_another_document() -> None:
    q, k, v, _ = inputs(1, 32, 2, 1, 4)
    segments = jnp.asarray([[1] * 10 + [2] * 12 + [0] * 10])
    attend = naturally(on_mesh(gathered(4), make_mesh(Layout(sequence=4, tensor=2))), 4, 32)

    @jax.jit
    def gradient(t: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(k: jax.Array, v: jax.Array) -> jax.Array:
            mixed = attend(q, k, v, mask=Masking(segments=segments, window=6), scale=1.0)
            return jnp.sum(mixed[0, t] ** 2)

        return jax.grad(one, argnums=(0, 1))(k, v)

    for t, first in ((3, 0), (9, 4), (14, 10), (21, 16)):
        for by_key in gradient(jnp.asarray(t)):
            reached = np.flatnonzero(np.abs(np.asarray(by_key)).sum((0, 2, 3)))
            assert reached.tolist() == list(range(first, t + 1))


def test_every_chip_computes_the_same_number_of_pairs_and_no_empty_one() -> None:
    """2 S + 1 pairs of chunks a chip: S (2 S + 1) are the lower triangle of 2 S chunks."""
    for ways in (1, 2, 4, 16):
        pairs = _pairs(ways, 8, 8, None)
        assert pairs.shape == (ways, 2 * ways + 1, 2)
        whole = {(chip, *pair) for chip in range(ways) for pair in pairs[chip].tolist()}
        assert len(whole) == ways * (2 * ways + 1)
    # Chunks of 4 blocks: the full pairs whole, the diagonal ones by half.
    assert _pairs(2, 16, 4, None).shape[1] == 3 * 4 * 4 + 2 * (4 * 5 // 2)


def test_whole_scores_are_never_held() -> None:
    T, ways = 4096, 4
    arrays = [jax.ShapeDtypeStruct((1, T, 1, 8), jnp.float32)] * 3
    mask = Masking(segments=jnp.ones((1, T), jnp.int32))
    attend = on_mesh(gathered(ways), make_mesh(Layout(sequence=ways)))

    def total(*qkv: jax.Array) -> jax.Array:
        return jnp.sum(attend(*qkv, mask=mask, scale=1.0))

    memory = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*arrays).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * T * T / ways / 2


def test_sequences_that_do_not_cut_evenly_and_heads_that_do_not_split() -> None:
    with pytest.raises(BadInput, match="cannot be cut into 8 equal chunks"):
        balanced_order(100, 4)
    attend = on_mesh(reference.attend, make_mesh(Layout(tensor=4)))
    q, k, v, _ = inputs(1, 8, 12, 6, 4)
    with pytest.raises(BadInput, match="12 query heads on 6 KV heads cannot be split 4 ways"):
        attend(q, k, v, mask=Masking(segments=packed(1, 8)), scale=1.0)
