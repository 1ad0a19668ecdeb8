"""What the chips of a mesh exchange in a step. Everything here runs on one chip's own arrays.

    forward                                         backward, which JAX derives
    whole_weight    all-gather over the shards      reduce-scatter of the gradient
    gather_tokens   all-gather over `tensor`        reduce-scatter
    scatter_tokens  reduce-scatter over `tensor`    all-gather
    held_alike      nothing                         all-reduce between chips with the same shard

So a step's collectives stand in the code, as in Megatron-LM (arXiv:2205.05198, section 4.2.2) and
ZeRO-3 (arXiv:1910.02054), and the compiler has none to guess.

What is differentiated is the sum of what all chips return. A value that several chips hold alike
therefore has a derivative in parts, one on each of them, whose sum it is. `held_alike` adds up the
parts of a layer's matrices while the backward pass goes on with the layer below, so that links
between slices are busy beside the matmuls; `sum_over_replicas` those of other parameters, once a
step, and all of them where microbatches are added up first.

Letters: B sequences of a chip, T their tokens, t those of them that lie on it between blocks,
D d_model.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from muster.sharding.rules import BATCH_AXES, MeshAxes
from muster.training.partition import MATRIX, Partition
from muster.training.parts import ranges

TOKEN_AXES = (*BATCH_AXES, "sequence")


def present(place: Partition, axes: MeshAxes) -> MeshAxes:
    """The mesh's axes that are these of the layout's, but for those of one way."""
    return tuple(axis for axis in place.over(axes) if place.mesh.shape[axis] > 1)


def whole_weight(
    shard: jax.Array,
    axes_of_dims: Sequence[MeshAxes],
    place: Partition,
    dtype: jax.typing.DTypeLike,
) -> jax.Array:
    """One copy of a weight for this chip's matmuls: rounded first, then gathered over its shards.

    Args:
        shard: this chip's part.
        axes_of_dims: the mesh axes over which each dim is gathered.
        place: the mesh.
        dtype: of the matmuls.
    """
    whole = shard.astype(dtype)
    for dim, axes in enumerate(axes_of_dims):
        for stage in place.stages(axes) if axes else ():
            if place.scatters_at_once and whole.ndim == MATRIX:
                whole = _gathered(place, stage.axes, dim, whole)
            else:
                whole = lax.all_gather(
                    whole, stage.axes, axis_index_groups=stage.groups, axis=dim, tiled=True
                )
    return whole


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gathered(place: Partition, axes: MeshAxes, dim: int, shard: jax.Array) -> jax.Array:
    """All of a matrix; its gradient is scattered in parts, whole rows of it."""
    del place
    return lax.all_gather(shard, axes, axis=dim, tiled=True)


def _gathered_forward(
    place: Partition, axes: MeshAxes, dim: int, shard: jax.Array
) -> tuple[jax.Array, None]:
    return _gathered(place, axes, dim, shard), None


def _gathered_backward(
    place: Partition, axes: MeshAxes, dim: int, _saved: None, gradient: jax.Array
) -> tuple[jax.Array]:
    # Scattered over its columns, narrow ones would be summed whole on every chip.
    rows = gradient if dim == 0 else gradient.T
    parts = [
        lax.psum_scatter(rows[:, part], axes, scatter_dimension=0, tiled=True)
        for part in ranges(place.parts(rows.shape))
    ]
    scattered = jnp.concatenate(parts, axis=1)
    return (scattered if dim == 0 else scattered.T,)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def gather_tokens(x_BtD: jax.Array, place: Partition) -> jax.Array:
    """The tokens that `tensor` splits between blocks, whole for a block's matmuls: [B, T, D]."""
    if not place.splits_tokens:
        return x_BtD
    whole: jax.Array = lax.all_gather(x_BtD, "tensor", axis=1, tiled=True)
    return whole


def scatter_tokens(part_BTD: jax.Array, place: Partition) -> jax.Array:
    """Add up what the chips of `tensor` computed of the same tokens; each keeps its own: [B, t, D].

    Where tokens do not split evenly, every chip keeps all.
    """
    if place.layout.tensor == 1:
        return part_BTD
    if not place.splits_tokens:
        return lax.psum(part_BTD, "tensor")
    own: jax.Array = lax.psum_scatter(part_BTD, "tensor", scatter_dimension=1, tiled=True)
    return own


def sum_over_tokens[Tree](tree: Tree, place: Partition) -> Tree:
    """Add up over all chips that hold other tokens."""
    axes = present(place, TOKEN_AXES)
    summed: Tree = lax.psum(tree, axes) if axes else tree
    return summed


def held_alike(shard: jax.Array, axes: MeshAxes) -> jax.Array:
    """The same shard; its gradient is added up over the chips along `axes`, which hold it too."""
    return _held_alike(axes, shard) if axes else shard


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _held_alike(_axes: MeshAxes, shard: jax.Array) -> jax.Array:
    return shard


def _held_alike_forward(_axes: MeshAxes, shard: jax.Array) -> tuple[jax.Array, None]:
    return shard, None


def _held_alike_backward(axes: MeshAxes, _saved: None, part: jax.Array) -> tuple[jax.Array]:
    return (lax.psum(part, axes),)


_held_alike.defvjp(_held_alike_forward, _held_alike_backward)


def sum_over_replicas(
    gradients: Mapping[str, jax.Array], axes_of: Mapping[str, MeshAxes]
) -> dict[str, jax.Array]:
    """Add up each parameter's gradient over the chips that hold the same shard of it.

    Args:
        gradients: by the parameters' names.
        axes_of: along which those chips stand; () for a gradient that is whole already.
    """
    groups: dict[MeshAxes, list[str]] = {}
    for name in gradients:
        groups.setdefault(axes_of[name], []).append(name)
    summed = dict(gradients)
    for axes, names in groups.items():
        if axes:
            summed |= lax.psum({name: gradients[name] for name in names}, axes)
    return summed
