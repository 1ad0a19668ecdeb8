"""Which mesh axes split which dim of a weight: the one rule that planner, compiler and trainer use.

    d_model                 fsdp, sequence, expert   gathered where it is used (ZeRO-3)
    heads, kv_heads, d_ff   tensor                   Megatron's split of attention and MLP
    vocab                   tensor                   of the embedding and the head
    experts                 expert                   whole experts a chip

A mesh axis splits one dim of a weight only, the first that names it, and only where its ways
divide the dim evenly: XLA holds every shard of an argument in equal size. Vectors are whole on
every chip but along `tensor`, since gathering them costs more than keeping them.
"""

from collections.abc import Iterator
from dataclasses import replace

from muster.models.architecture import Architecture
from muster.sharding.mesh import Layout
from muster.sharding.weight import Weight
from muster.sharding.weights import weight_table

type MeshAxes = tuple[str, ...]

TENSOR_DIMS = ("heads", "kv_heads", "d_ff", "vocab")
EXPERT_DIM = "experts"
SHARDED_DIM = "d_model"
# Over these the weights are sharded and gathered; X of the scaling book is their product.
SHARD_AXES = ("fsdp", "sequence", "expert")
BATCH_AXES = ("slice", "data", "fsdp", "expert")


def mesh_axes(weight: Weight, layout: Layout) -> tuple[MeshAxes, ...]:
    """The mesh axes over which each dim of one copy of a weight is split, outermost first.

    >>> from muster.sharding.weight import matmul
    >>> up = matmul("up", "mlp", (4096, 14336), ("d_model", "d_ff"))
    >>> mesh_axes(up, Layout(fsdp=16, tensor=4))
    (('fsdp',), ('tensor',))
    """
    claimed: dict[str, MeshAxes] = {}
    for dim, size in zip(weight.dims, weight.shape, strict=True):
        taken = {axis for axes in claimed.values() for axis in axes}
        claimed[dim] = tuple(axis for axis in _wanted(weight, dim, layout) if axis not in taken)
        claimed[dim] = _that_divide(claimed[dim], size, layout)
    return tuple(claimed[dim] for dim in weight.dims)


def shards(weight: Weight, layout: Layout) -> int:
    """Over how many different shards a weight is split."""
    ways = 1
    for axes in mesh_axes(weight, layout):
        for axis in axes:
            ways *= getattr(layout, axis)
    return ways


def padded_vocab(vocab_size: int, layout: Layout) -> int:
    """V rounded up to a multiple of the tensor ways: rows that are never predicted.

    >>> padded_vocab(50257, Layout(tensor=4))
    50260
    """
    return -(-vocab_size // layout.tensor) * layout.tensor


def padded_table(architecture: Architecture, layout: Layout) -> tuple[Weight, ...]:
    """The arrays that are trained: the weight table as it is held, V padded for `tensor`."""
    return tuple(as_held(_padded(weight, layout)) for weight in weight_table(architecture))


def as_held(weight: Weight) -> Weight:
    """A weight with D as its first dim, so that a shard of D is whole rows of memory.

    A chip's part of a [F, D] matrix that is split 512 ways over D = 8192 would be 16 numbers of
    every row, an eighth of a tile of 128 lanes; of [D, F] it is 16 rows. Tables are left, as rows
    of them are looked up, and routed experts, whose grouped matmuls contract the first dim.

    >>> from muster.sharding.weight import matmul
    >>> as_held(matmul("down", "mlp", (14336, 4096), ("d_ff", "d_model"))).dims
    ('d_model', 'd_ff')
    """
    if weight.role != "matmul" or EXPERT_DIM in weight.dims or SHARDED_DIM not in weight.dims:
        return weight
    first = weight.dims.index(SHARDED_DIM)
    order = (first, *(dim for dim in range(len(weight.dims)) if dim != first))
    return replace(
        weight,
        dims=tuple(weight.dims[dim] for dim in order),
        shape=tuple(weight.shape[dim] for dim in order),
    )


def _padded(weight: Weight, layout: Layout) -> Weight:
    shape = tuple(
        padded_vocab(size, layout) if dim == "vocab" else size
        for dim, size in zip(weight.dims, weight.shape, strict=True)
    )
    return replace(weight, shape=shape)


def unsplit(architecture: Architecture, layout: Layout) -> Iterator[str]:
    """Names of matrices whose D does not divide over the ways that were to shard it."""
    for weight in weight_table(architecture):
        if weight.role == "vector" or SHARDED_DIM not in weight.dims:
            continue
        size = weight.shape[weight.dims.index(SHARDED_DIM)]
        wanted = _wanted(weight, SHARDED_DIM, layout)
        if EXPERT_DIM in weight.dims and weight.component == "experts":
            wanted = tuple(axis for axis in wanted if axis != "expert")
        if _that_divide(wanted, size, layout) != wanted:
            yield weight.name


def _wanted(weight: Weight, dim: str, layout: Layout) -> MeshAxes:
    """The axes that a dim would be split over if they all divided it; those of one way left out."""
    if dim in TENSOR_DIMS:
        axes: MeshAxes = ("tensor",)
    elif dim == EXPERT_DIM and len(weight.shape) > 2:
        axes = ("expert",)
    elif dim == SHARDED_DIM and weight.role != "vector":
        axes = ("slice", *SHARD_AXES) if layout.shards_over_slices else SHARD_AXES
    else:
        axes = ()
    return tuple(axis for axis in axes if getattr(layout, axis) > 1)


def _that_divide(axes: MeshAxes, size: int, layout: Layout) -> MeshAxes:
    """The longest row of axes from the front whose ways divide a size."""
    kept: MeshAxes = ()
    for axis in axes:
        ways = getattr(layout, axis)
        if size % ways:
            break
        kept, size = (*kept, axis), size // ways
    return kept
