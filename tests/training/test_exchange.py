"""Gathers along one physical axis after another give what one gather gives, there and back."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from muster.models.registry import find_model
from muster.sharding.mesh import Layout
from muster.sharding.torus import CHIP_AXIS, Piece
from muster.training.exchange import whole_weight
from muster.training.mesh import mesh_ways
from muster.training.partition import Partition, Stage
from muster.training.parts import TILE

LAYOUT = Layout(fsdp=4, sequence=2)
AXES = ("fsdp", "sequence")
# fsdp on two physical axes, or on one that sequence has the rest of.
SPLIT = {"fsdp": (Piece(1, 2, 2, 1), Piece(0, 4, 2, 2)), "sequence": (Piece(0, 4, 2, 1),)}
TOGETHER = {"fsdp": (Piece(0, 8, 4, 2),), "sequence": (Piece(0, 8, 2, 1),)}
# `sequence` on two physical axes.
APART = {"fsdp": (Piece(2, 2, 2, 1),), "sequence": (Piece(1, 2, 2, 1), Piece(0, 2, 2, 1))}


def place(pieces: Mapping[str, tuple[Piece, ...]]) -> Partition:
    layout = Layout(fsdp=2, sequence=4) if pieces == APART else LAYOUT
    ways = mesh_ways(layout, pieces)
    mesh = jax.make_mesh(tuple(ways.values()), tuple(ways), axis_types=(AxisType.Auto,) * len(ways))
    return Partition(mesh=mesh, layout=layout, pieces=pieces)


def test_stages_are_one_physical_axis_each() -> None:
    def stages(pieces: Mapping[str, tuple[Piece, ...]]) -> tuple[Stage, ...]:
        here = place(pieces)
        return here.stages(here.over(AXES))

    assert stages({}) == (Stage(axes=AXES),)
    assert stages(TOGETHER) == (Stage(axes=AXES),)
    assert stages(SPLIT) == (Stage(axes=("fsdp_x", "sequence")), Stage(axes=("fsdp_y",)))
    assert stages(APART) == (
        Stage(axes=("sequence",), groups=((0, 1), (2, 3))),
        Stage(axes=("sequence",), groups=((0, 2), (1, 3))),
        Stage(axes=("fsdp",)),
    )


def test_gathers_over_all_axes_at_once() -> None:
    """Between slices first, as little should go there."""
    at_once = replace(place(SPLIT), gathers_at_once=True)
    split = at_once.split_axes(find_model("llama-3-8b"))
    everything = ("fsdp_y", "fsdp_x", "sequence")
    assert {axes[0] for name, axes in split.items() if "mlp" in name} == {everything}
    assert at_once.stages(everything) == (Stage(axes=everything),)
    assert at_once.stages((*everything, "slice")) == (
        Stage(axes=("slice",)),
        Stage(axes=everything),
    )


def test_the_devices_of_a_chip_exchange_what_each_fetched() -> None:
    on_chip = {"fsdp": (Piece(0, 2, 2, 1), Piece(CHIP_AXIS, 2, 2, 1)), "sequence": ()}
    split = place(on_chip).split_axes(find_model("llama-3-8b"))
    matrices = [name for name in split if "mlp" in name or "attention" in name]
    assert len(matrices) == 7
    for name in matrices:
        assert split[name][0] == ("fsdp_c", "fsdp_x", "sequence")


ORDERS = [
    ({}, AXES),
    (TOGETHER, AXES),
    (SPLIT, ("fsdp_y", "fsdp_x", "sequence")),
    (SPLIT, ("fsdp_x", "sequence", "fsdp_y")),
    (APART, AXES),
    (APART, ("sequence", "fsdp")),
]


@pytest.mark.parametrize(("pieces", "axes"), ORDERS)
def test_a_weight_is_whole_and_its_gradient_comes_back(
    pieces: Mapping[str, tuple[Piece, ...]], axes: tuple[str, ...]
) -> None:
    here = place(pieces)
    weight = jnp.arange(16.0 * 3).reshape(16, 3)

    def on_chip(shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        chip = jax.lax.axis_index(axes)

        def loss(shard: jax.Array) -> tuple[jax.Array, jax.Array]:
            whole = whole_weight(shard, (axes, ()), here, jnp.float32)
            # Every chip weighs every row differently, so that no mix-up goes unseen.
            return jnp.sum((chip + 1.0) * jnp.arange(16.0)[:, None] * whole), whole

        gradient, whole = jax.grad(loss, has_aux=True)(shard)
        return gradient, whole[None]

    run = partial(jax.shard_map, mesh=here.mesh, in_specs=P(axes), check_vma=False)
    gradient, whole = jax.jit(run(on_chip, out_specs=(P(axes), P(axes))))(weight)
    for each in whole:
        np.testing.assert_array_equal(each, weight)
    wanted = sum(range(1, 9)) * np.arange(16.0)[:, None] * np.ones((1, 3))
    np.testing.assert_array_equal(gradient, wanted)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_gradient_scattered_in_parts_is_the_same(dim: int) -> None:
    """Over all physical axes at once: a matrix's rows, or its columns as rows; 4 tiles and 1."""
    here = replace(place(SPLIT), gathers_at_once=True)
    axes = here.over(AXES)
    columns = 5 * TILE
    assert here.parts((16, columns)) == (4 * TILE, TILE)
    shape = (16, columns) if dim == 0 else (columns, 16)
    weight = jnp.arange(16.0 * columns).reshape(shape)
    weighed = jnp.cos(jnp.arange(16.0 * columns)).reshape(shape)
    split = P(axes) if dim == 0 else P(None, axes)

    def on_chip(shard: jax.Array) -> jax.Array:
        chip = jax.lax.axis_index(axes)

        def loss(shard: jax.Array) -> jax.Array:
            gathered = (axes, ()) if dim == 0 else ((), axes)
            whole = whole_weight(shard, gathered, here, jnp.float32)
            return jnp.sum((chip + 1.0) * weighed * whole**2)

        return jax.grad(loss)(shard)

    run = jax.shard_map(on_chip, mesh=here.mesh, in_specs=split, out_specs=split, check_vma=False)
    wanted = sum(range(1, 9)) * 2 * weighed * weight
    np.testing.assert_allclose(jax.jit(run)(weight), wanted, rtol=1e-5)
