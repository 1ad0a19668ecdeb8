"""Where arrays live: how weights and activations are laid over a mesh.

The rules themselves are `muster.sharding.rules`; here they become JAX's objects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.models.architecture import Architecture
from muster.sharding.mesh import Layout
from muster.sharding.rules import (
    BATCH_AXES,
    SHARD_AXES,
    SHARDED_DIM,
    MeshAxes,
    mesh_axes,
    padded_table,
)
from muster.sharding.torus import CHIP_AXIS, Piece
from muster.training.mesh import SPLIT_AXIS, split_name
from muster.training.parts import parts

LAYERS = "layers."
BETWEEN_SLICES = "slice"
MATRIX = 2  # dims


def _groups_along(ways: Sequence[int], number: int) -> tuple[tuple[int, ...], ...]:
    """Indices of an axis of several pieces that differ along one of them only.

    >>> _groups_along([2, 3], 0)
    ((0, 3), (1, 4), (2, 5))
    """
    indices = np.arange(math.prod(ways)).reshape(ways)
    rows = np.moveaxis(indices, number, -1).reshape(-1, ways[number])
    return tuple(tuple(map(int, row)) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of a gather: over these mesh axes, or over groups of the indices of a single one."""

    axes: MeshAxes
    groups: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A mesh with the layout that it was made for.

    Attributes:
        sequence_parallel: whether activations between blocks split T over `tensor` too.
        gathers_at_once: whether weights are gathered over all physical axes in one collective.
        rows_first: whether the compiler is told in which order a matrix's gradient is scattered.
        pieces: the physical axes of each mesh axis, outermost first; empty where there is no torus.
    """

    mesh: Mesh
    layout: Layout
    sequence_parallel: bool = True
    gathers_at_once: bool = False
    rows_first: bool = True
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict, hash=False)

    @property
    def splits_tokens(self) -> bool:
        """Whether the chips of `tensor` hold different tokens between blocks."""
        return self.sequence_parallel and self.layout.tensor > 1

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs, which like other forms of the same sums."""
        return bool(self.mesh.devices.flat[0].platform == "cpu")

    @property
    def on_tpu(self) -> bool:
        """Whether the devices are TPUs, which are told layouts and have forms of their own."""
        return bool(self.mesh.devices.flat[0].platform == "tpu")

    @cached_property
    def tokens(self) -> NamedSharding:
        """Of a batch's leaves, [B, T]."""
        return self.named(BATCH_AXES, "sequence")

    def over(self, axes: MeshAxes) -> MeshAxes:
        """The mesh's axes that are these of the layout's, outermost first."""
        fine = tuple(split_name(piece) for piece in self.pieces.get(SPLIT_AXIS, ()))
        split = {SPLIT_AXIS: fine} if len(fine) > 1 else {}
        return tuple(own for axis in axes for own in split.get(axis, (axis,)))

    def ways(self, axis: str) -> int:
        """Devices along an axis of the layout."""
        return math.prod(self.mesh.shape[own] for own in self.over((axis,)))

    def stages(self, axes: MeshAxes) -> tuple[Stage, ...]:
        """The steps in which arrays are gathered over axes of the mesh, inner chips first.

        Where the compiler has no gather over several axes of a torus that runs beside matmuls, one
        physical axis at a time: all but the last step move little.
        """
        if not self.pieces or self.gathers_at_once:
            within = tuple(axis for axis in axes if axis != BETWEEN_SLICES)
            between = tuple(axis for axis in axes if axis == BETWEEN_SLICES)
            return tuple(Stage(axes=each) for each in (between, within) if each)
        return tuple(
            stage for block in reversed(self._blocks(axes)) for stage in self._block_stages(block)
        )

    @property
    def scatters_at_once(self) -> bool:
        """Whether gradients of weights are scattered over all physical axes in one collective."""
        return bool(self.pieces) and self.gathers_at_once

    def parts(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Widths of the parts in which a weight's gradient [rows, columns] is scattered.

        One where nothing is cut: what is no matrix, and what is scattered axis by axis.
        """
        columns = int(shape[-1])
        if not self.scatters_at_once or len(shape) != MATRIX:
            return (columns,)
        own = [piece for axis in SHARD_AXES for piece in self.pieces.get(axis, ())]
        return parts(
            columns,
            axes=len({piece.axis for piece in own} - {CHIP_AXIS}),
            chips=math.prod(piece.ways for piece in own),
        )

    def _block_stages(self, block: MeshAxes) -> tuple[Stage, ...]:
        """The steps over neighbouring axes that share a physical one, or over one with several."""
        ways = [piece.ways for piece in self._pieces_of(block[0])]
        if len(ways) <= 1:
            return (Stage(axes=block),)
        return tuple(
            Stage(axes=block, groups=_groups_along(ways, number))
            for number in reversed(range(len(ways)))
        )

    def _blocks(self, axes: MeshAxes) -> list[MeshAxes]:
        """Axes of the mesh, outermost first, those of one physical axis together."""
        blocks: list[MeshAxes] = []
        before = None
        for axis in axes:
            pieces = self._pieces_of(axis)
            whole = pieces[0].axis if len(pieces) == 1 else None
            if whole is not None and whole == before:
                blocks[-1] = (*blocks[-1], axis)
            else:
                blocks.append((axis,))
            before = whole
        return blocks

    def _pieces_of(self, axis: str) -> tuple[Piece, ...]:
        """The physical axes of an axis of the mesh."""
        if axis in self.pieces:
            return self.pieces[axis]
        split = self.pieces.get(SPLIT_AXIS, ())
        return tuple(piece for piece in split if split_name(piece) == axis)

    def _ordered(self, axes: MeshAxes) -> MeshAxes:
        """Axes of the mesh as they split a dim, outermost first: most bytes go over the first.

        The devices of a chip come first: each then takes its own part of an array over the links
        that they share. Slices come last, as little should go between them.
        """
        if not self.pieces or self.gathers_at_once:
            return tuple(sorted(axes, key=lambda axis: axis == BETWEEN_SLICES))
        blocks = self._blocks(axes)
        on_chip = [block for block in blocks if self._goes_over(block, CHIP_AXIS)]
        between = [block for block in blocks if not self._pieces_of(block[0])]
        rings = [block for block in blocks if block not in on_chip and block not in between]
        return tuple(axis for block in (*on_chip, *rings, *between) for axis in block)

    def _goes_over(self, block: MeshAxes, physical: int) -> bool:
        return any(piece.axis == physical for piece in self._pieces_of(block[0]))

    @cached_property
    def replicated(self) -> NamedSharding:
        """Of a scalar that every device holds."""
        return self.named()

    def named(self, *spec: str | tuple[str, ...] | None) -> NamedSharding:
        """A sharding over this mesh, of its own axes or the layout's."""
        axes = ((entry,) if isinstance(entry, str) else entry or () for entry in spec)
        return NamedSharding(self.mesh, P(*(_entry(self.over(each)) for each in axes)))

    def params(self, architecture: Architecture) -> dict[str, NamedSharding]:
        """Of every parameter's array, stacked over the layers in front if it is a layer's."""
        return {
            name: self.named(*((None,) if name.startswith(LAYERS) else ()), *axes)
            for name, axes in self.split_axes(architecture).items()
        }

    def split_axes(self, architecture: Architecture) -> dict[str, tuple[MeshAxes, ...]]:
        """The axes of the mesh that split each dim of one copy of each parameter."""
        return {
            weight.name: tuple(
                self._ordered(self.over(axes)) if dim == SHARDED_DIM else axes
                for dim, axes in zip(weight.dims, mesh_axes(weight, self.layout), strict=True)
            )
            for weight in padded_table(architecture, self.layout)
        }

    def replica_axes(self, architecture: Architecture) -> dict[str, MeshAxes]:
        """The axes of the mesh along which chips hold the same shard of each parameter."""
        several = [axis for axis in self.mesh.axis_names if self.mesh.shape[axis] > 1]
        return {
            name: tuple(axis for axis in several if all(axis not in axes for axes in split))
            for name, split in self.split_axes(architecture).items()
        }

    def summed_at_once(self, architecture: Architecture) -> dict[str, MeshAxes]:
        """Those of `replica_axes` along which gradients are added up as soon as they are there.

        Of the layers' matrices, where there are no microbatches to be added up first.
        """
        if self.layout.microbatches > 1:
            return {}
        replicas = self.replica_axes(architecture)
        return {
            weight.name: replicas[weight.name]
            for weight in padded_table(architecture, self.layout)
            if weight.name.startswith(LAYERS) and weight.role != "vector"
        }

    def gathered_axes(self, architecture: Architecture) -> dict[str, tuple[MeshAxes, ...]]:
        """Those of `split_axes` that are gathered where a weight is used: D's."""
        split = self.split_axes(architecture)
        return {
            weight.name: tuple(
                axes if dim == SHARDED_DIM else ()
                for dim, axes in zip(weight.dims, split[weight.name], strict=True)
            )
            for weight in padded_table(architecture, self.layout)
        }


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if len(axes) <= 1:
        return axes[0] if axes else None
    return axes
