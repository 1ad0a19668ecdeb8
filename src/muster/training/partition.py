"""Where arrays live: the mesh of a layout, and how weights and activations are laid over it.

The rules themselves are `muster.sharding.rules`; here they become JAX's objects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
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
from muster.sharding.torus import AXIS_NAMES, CHIP_AXIS, Piece, placement, shared_out
from muster.sharding.weight import Weight

LAYERS = "layers."
AXES = ("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor")
SPLIT_AXIS = "fsdp"  # has an axis of the mesh for each of its physical axes


def make_mesh(layout: Layout, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a layout, outermost axis first, on the first of `devices` that it needs.

    On TPUs every mesh axis takes the physical axes that `sharding.torus` gives it, and `fsdp` is
    several axes of the mesh where those are several: `fsdp_z`, `fsdp_y`.

    Raises:
        BadInput: there are fewer devices than the layout has chips.
    """
    available = list(jax.devices() if devices is None else devices)
    if len(available) < layout.chips_used:
        raise BadInput(
            f"the layout is for {layout.chips_used:,} devices and there are {len(available):,}"
        )
    if available[0].platform == "tpu":
        slices: dict[int, list[jax.Device]] = {}
        for device in available:
            number = getattr(device, "slice_index", None) if layout.slice > 1 else None
            slices.setdefault(number or 0, []).append(device)
        used = [own[: layout.chips_per_slice] for own in slices.values()][: layout.slice]
        grid = np.stack([_on_torus(layout, own) for own in used])
        ways = mesh_ways(layout, torus_pieces(layout, used[0]))
    else:
        grid = np.asarray(available[: layout.chips_used])
        ways = mesh_ways(layout, {})
    shape, names = tuple(ways.values()), tuple(ways)
    return Mesh(grid.reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def mesh_ways(layout: Layout, pieces: Mapping[str, tuple[Piece, ...]]) -> dict[str, int]:
    """The mesh's axes, outermost first, and their ways.

    >>> ways = mesh_ways(Layout(fsdp=8), {"fsdp": (Piece(2, 4, 4, 1), Piece(0, 2, 2, 1))})
    >>> {axis: number for axis, number in ways.items() if number > 1}
    {'fsdp_z': 4, 'fsdp_x': 2}
    """
    ways: dict[str, int] = {}
    for axis in AXES:
        own = pieces.get(axis, ())
        if axis == SPLIT_AXIS and len(own) > 1:
            ways |= {_split_name(piece): piece.ways for piece in own}
        else:
            ways[axis] = getattr(layout, axis)
    return ways


def _split_name(piece: Piece) -> str:
    return f"{SPLIT_AXIS}_{AXIS_NAMES[piece.axis]}"


def _on_torus(layout: Layout, devices: list[jax.Device]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """The devices of one slice in the mesh's order, all of its axes but `slice`."""
    ways = tuple(getattr(layout, axis) for axis in AXES[1:])
    places, shape = _places(devices)
    pieces = torus_pieces(layout, devices)
    order = [piece for name in AXES for piece in pieces.get(name, ())]
    if not pieces:
        # Ways that the torus does not divide into, or a part of its chips: JAX's own order.
        from jax.experimental import mesh_utils  # noqa: PLC0415

        return mesh_utils.create_device_mesh(ways, devices, allow_split_physical_axes=True)
    grid = np.empty(shape, object)
    for place, device in zip(places, devices, strict=True):
        grid[tuple(place)] = device
    # Split each physical axis into its pieces, the nearest chips last, and put them in order.
    split = sorted(order, key=lambda piece: (piece.axis, -piece.stride))
    turned = [split.index(piece) for piece in order]
    return grid.reshape([piece.ways for piece in split]).transpose(turned).reshape(ways)


def torus_pieces(layout: Layout, devices: Sequence[jax.Device]) -> Mapping[str, tuple[Piece, ...]]:
    """The physical axes of each mesh axis on one slice; empty where the ways do not fit a torus."""
    if devices[0].platform != "tpu":
        return {}
    _, shape = _places(devices)
    pieces = placement(shape[:-1], layout, devices_per_chip=shape[-1])
    taken = math.prod(piece.ways for of_axis in pieces.values() for piece in of_axis)
    return pieces if taken == layout.chips_per_slice == math.prod(shape) else {}


def _places(devices: Sequence[jax.Device]) -> tuple[Any, tuple[int, ...]]:
    """Coordinates of devices, from 0, each with its number on its chip; and how many there are."""
    found = np.asarray([(*device.coords, device.core_on_chip) for device in devices])
    found -= found.min(axis=0)
    return found, tuple(int(size) for size in found.max(axis=0) + 1)


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
        pieces: the physical axes of each mesh axis, outermost first; empty where there is no torus.
    """

    mesh: Mesh
    layout: Layout
    sequence_parallel: bool = True
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict, hash=False)

    @property
    def splits_tokens(self) -> bool:
        """Whether the chips of `tensor` hold different tokens between blocks."""
        return self.sequence_parallel and self.layout.tensor > 1

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPUs, which like other forms of the same sums."""
        return bool(self.mesh.devices.flat[0].platform == "cpu")

    @cached_property
    def tokens(self) -> NamedSharding:
        """Of a batch's leaves, [B, T]."""
        return self.named(BATCH_AXES, "sequence")

    def over(self, axes: MeshAxes) -> MeshAxes:
        """The mesh's axes that are these of the layout's, outermost first."""
        fine = tuple(_split_name(piece) for piece in self.pieces.get(SPLIT_AXIS, ()))
        split = {SPLIT_AXIS: fine} if len(fine) > 1 else {}
        return tuple(own for axis in axes for own in split.get(axis, (axis,)))

    def ways(self, axis: str) -> int:
        """Devices along an axis of the layout."""
        return math.prod(self.mesh.shape[own] for own in self.over((axis,)))

    def stages(self, axes: MeshAxes) -> tuple[Stage, ...]:
        """The steps in which arrays are gathered over axes of the mesh, inner chips first.

        On a torus one physical axis at a time: such a gather can run beside matmuls (v5p's and
        v6e's SparseCores take rings of one axis only), and all but the last step move little.
        """
        if not self.pieces:
            return (Stage(axes=axes),)
        return tuple(
            stage for block in reversed(self._blocks(axes)) for stage in self._block_stages(block)
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
        return tuple(piece for piece in split if _split_name(piece) == axis)

    def _turned(self, axes: MeshAxes, turn: int) -> MeshAxes:
        """Axes of the mesh with another physical axis outermost, over which most bytes go.

        The devices of a chip come before it: each then takes its own part of an array over the
        links that they share. Slices come last, as little should go between them.
        """
        if not self.pieces:
            return axes
        blocks = self._blocks(axes)
        on_chip = [block for block in blocks if self._goes_over(block, CHIP_AXIS)]
        between = [block for block in blocks if not self._pieces_of(block[0])]
        rings = [block for block in blocks if block not in on_chip and block not in between]
        if rings:
            rings.insert(0, rings.pop(turn % len(rings)))
        return tuple(axis for block in (*on_chip, *rings, *between) for axis in block)

    @cached_property
    def _rings(self) -> int:
        """Physical axes that weights are gathered over, one after the other."""
        axes = (axis for axis in SHARD_AXES if getattr(self.layout, axis) > 1)
        blocks = self._blocks(self.over(tuple(axes))) if self.pieces else []
        return sum(not self._goes_over(block, CHIP_AXIS) for block in blocks)

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
        """The axes of the mesh that split each dim of one copy of each parameter.

        Weights take turns as to which physical axis splits D outermost. Most bytes of a gather go
        over that one, so gathers of several weights keep several axes of the torus busy.
        """
        table = padded_table(architecture, self.layout)
        turns = _turns(table, self._rings)
        return {
            weight.name: tuple(
                self._turned(self.over(axes), turns[weight.name]) if dim == SHARDED_DIM else axes
                for dim, axes in zip(weight.dims, mesh_axes(weight, self.layout), strict=True)
            )
            for weight in table
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


def _turns(table: Sequence[Weight], rings: int) -> dict[str, int]:
    """Which of so many rings most bytes of each weight go over: layers' in balance, and others'."""
    turns: dict[str, int] = {}
    for of_layers in (True, False):
        sizes = {
            weight.name: math.prod(weight.shape)
            for weight in table
            if weight.name.startswith(LAYERS) == of_layers and weight.role != "vector"
        }
        turns |= shared_out(sizes, max(1, rings))
    return {weight.name: turns.get(weight.name, 0) for weight in table}  # vectors: whole


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if len(axes) <= 1:
        return axes[0] if axes else None
    return axes
