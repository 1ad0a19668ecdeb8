"""Looking tokens up in a table whose gradient is scattered in parts, against a plain table."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from muster.sharding.mesh import Layout
from muster.sharding.torus import Piece
from muster.training.mesh import mesh_ways
from muster.training.model import embedded
from muster.training.partition import Partition
from muster.training.parts import TILE

D, WORDS = 16, 5 * TILE
TORUS = {"fsdp": (Piece(1, 2, 2, 1), Piece(0, 2, 2, 1))}
LAYOUTS = [Layout(fsdp=4, data=2), Layout(fsdp=4, tensor=2)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_table_in_parts(layout: Layout) -> None:
    """5 tiles of words on a chip, in parts of 4 and 1; tensor ways split the words."""
    ways = mesh_ways(layout, TORUS)
    mesh = jax.make_mesh(tuple(ways.values()), tuple(ways), axis_types=(AxisType.Auto,) * len(ways))
    place = Partition(mesh=mesh, layout=layout, pieces=TORUS, gathers_at_once=True)
    assert place.parts((D, WORDS)) == (4 * TILE, TILE)
    axes = place.over(("fsdp",))
    model: Any = SimpleNamespace(
        partition=place,
        architecture=SimpleNamespace(d_model=D),
        gathered_axes={"embedding": ((), axes)},
        compute_dtype=jnp.float32,
    )
    words = WORDS * layout.tensor
    table_VD = jax.random.normal(jax.random.key(0), (words, D))
    weight_BTD = jax.random.normal(jax.random.key(1), (8, 32, D))
    tokens_BT = jax.random.randint(jax.random.key(2), (8, 32), 0, words)
    at_edges = jnp.asarray([0, 4 * TILE - 1, 4 * TILE, words - 1])
    tokens_BT = tokens_BT.at[0, :4].set(at_edges)
    batch = P(("data", *axes), None)
    rows = P(("data", *axes), "tensor")

    def total(table: jax.Array, tokens: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.sum(embedded(table, tokens, model) * weight)

    split = P("tensor", axes)
    shards = partial(jax.shard_map, mesh=mesh, check_vma=False)
    look_up = partial(embedded, model=model)
    looked_up = shards(look_up, in_specs=(split, batch), out_specs=rows)
    np.testing.assert_array_equal(looked_up(table_VD, tokens_BT), table_VD[tokens_BT])

    def of_chips(table: jax.Array, tokens: jax.Array, weight: jax.Array) -> jax.Array:
        gradient = jax.grad(total)(table, tokens, weight)
        return jax.lax.psum(gradient, "data")

    found = jax.jit(shards(of_chips, in_specs=(split, batch, rows), out_specs=split))(
        table_VD, tokens_BT, weight_BTD
    )
    expected = jnp.zeros_like(table_VD).at[tokens_BT].add(weight_BTD)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
