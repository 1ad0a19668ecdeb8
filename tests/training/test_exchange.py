"""Gathers along one physical axis after another give what one gather gives, there and back."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from muster.sharding.mesh import Layout
from muster.sharding.torus import Piece
from muster.training.exchange import whole_weight
from muster.training.partition import Partition, Stage, make_mesh

LAYOUT = Layout(fsdp=4, sequence=2)
AXES = ("fsdp", "sequence")
# fsdp on two physical axes, or on one that sequence has the rest of.
SPLIT = {"fsdp": (Piece(1, 2, 2, 1), Piece(0, 4, 2, 2)), "sequence": (Piece(0, 4, 2, 1),)}
TOGETHER = {"fsdp": (Piece(0, 8, 4, 2),), "sequence": (Piece(0, 8, 2, 1),)}


def place(pieces: Mapping[str, tuple[Piece, ...]]) -> Partition:
    return replace(Partition(mesh=make_mesh(LAYOUT), layout=LAYOUT), pieces=pieces)


def test_stages_are_one_physical_axis_each() -> None:
    assert place({}).stages(AXES) == (Stage(axes=AXES),)
    assert place(TOGETHER).stages(AXES) == (Stage(axes=AXES),)
    assert place(SPLIT).stages(AXES) == (
        Stage(axes=("sequence",)),
        Stage(axes=("fsdp",), groups=((0, 1), (2, 3))),
        Stage(axes=("fsdp",), groups=((0, 2), (1, 3))),
    )


@pytest.mark.parametrize("pieces", [{}, SPLIT, TOGETHER], ids=["once", "split", "together"])
def test_a_weight_is_whole_and_its_gradient_comes_back(
    pieces: Mapping[str, tuple[Piece, ...]],
) -> None:
    here = place(pieces)
    weight = jnp.arange(16.0 * 3).reshape(16, 3)

    def on_chip(shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        chip = jax.lax.axis_index(AXES)

        def loss(shard: jax.Array) -> tuple[jax.Array, jax.Array]:
            whole = whole_weight(shard, (AXES, ()), here, jnp.float32)
            # Every chip weighs every row differently, so that no mix-up goes unseen.
            return jnp.sum((chip + 1.0) * jnp.arange(16.0)[:, None] * whole), whole

        gradient, whole = jax.grad(loss, has_aux=True)(shard)
        return gradient, whole[None]

    run = partial(jax.shard_map, mesh=here.mesh, in_specs=P(AXES), check_vma=False)
    gradient, whole = jax.jit(run(on_chip, out_specs=(P(AXES), P(AXES))))(weight)
    for each in whole:
        np.testing.assert_array_equal(each, weight)
    wanted = sum(range(1, 9)) * np.arange(16.0)[:, None] * np.ones((1, 3))
    np.testing.assert_array_equal(gradient, wanted)
