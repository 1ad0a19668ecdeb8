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
from muster.sharding.rules import BATCH_AXES, SHARDED_DIM, MeshAxes, mesh_axes, padded_table
from muster.sharding.torus import Piece, placement
from muster.sharding.weight import Weight

LAYERS = "layers."
AXES = ("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor")


def make_mesh(layout: Layout, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a layout, outermost axis first, on the first of `devices` that it needs.

    On TPUs every mesh axis takes the physical axes that `sharding.torus` gives it.

    Raises:
        BadInput: there are fewer devices than the layout has chips.
    """
    available = list(jax.devices() if devices is None else devices)
    shape = tuple(getattr(layout, axis) for axis in AXES)
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
    else:
        grid = np.asarray(available[: layout.chips_used]).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


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

    def stages(self, axes: MeshAxes) -> tuple[Stage, ...]:
        """The steps in which arrays are gathered over mesh axes, inner chips first.

        On a torus one physical axis at a time: such a gather can run beside matmuls (v5p's and
        v6e's SparseCores take rings of one axis only), and all but the last step move little.
        """
        if not self.pieces:
            return (Stage(axes=axes),)
        stages: list[Stage] = []
        before = None  # the physical axis of the last stage, where that is all of its mesh axes
        for axis in reversed(axes):
            pieces = self.pieces.get(axis, ())
            ways = [piece.ways for piece in pieces]
            whole = pieces[0].axis if len(pieces) == 1 else None
            if whole is not None and whole == before:
                stages[-1] = Stage(axes=(axis, *stages[-1].axes))
            elif len(pieces) <= 1:
                stages.append(Stage(axes=(axis,)))
            else:
                stages += [
                    Stage(axes=(axis,), groups=_groups_along(ways, number))
                    for number in reversed(range(len(pieces)))
                ]
            before = whole
        return tuple(stages)

    @cached_property
    def replicated(self) -> NamedSharding:
        """Of a scalar that every device holds."""
        return self.named()

    def named(self, *spec: str | tuple[str, ...] | None) -> NamedSharding:
        """A sharding over this mesh."""
        return NamedSharding(self.mesh, P(*spec))

    def weight(self, weight: Weight) -> NamedSharding:
        """Of a weight's array, stacked over the layers in front if it is a layer's."""
        return NamedSharding(self.mesh, weight_spec(weight, self.layout))

    def params(self, architecture: Architecture) -> dict[str, NamedSharding]:
        """Of every parameter."""
        return {
            weight.name: self.weight(weight) for weight in padded_table(architecture, self.layout)
        }

    def split_axes(self, architecture: Architecture) -> dict[str, tuple[MeshAxes, ...]]:
        """The mesh axes that split each dim of one copy of each parameter."""
        return {
            weight.name: mesh_axes(weight, self.layout)
            for weight in padded_table(architecture, self.layout)
        }

    def gathered_axes(self, architecture: Architecture) -> dict[str, tuple[MeshAxes, ...]]:
        """Those of `split_axes` that are gathered where a weight is used: D's."""
        return {
            weight.name: tuple(
                axes if dim == SHARDED_DIM else ()
                for dim, axes in zip(weight.dims, mesh_axes(weight, self.layout), strict=True)
            )
            for weight in padded_table(architecture, self.layout)
        }


def weight_spec(weight: Weight, layout: Layout) -> P:
    """The PartitionSpec of a weight's array.

    >>> from muster.sharding.weight import matmul
    >>> up = matmul("layers.mlp.up", "mlp", (4096, 14336), ("d_model", "d_ff"))
    >>> weight_spec(up, Layout(fsdp=16, tensor=4))
    P(None, 'fsdp', 'tensor')
    """
    stacked: tuple[None, ...] = (None,) if weight.name.startswith(LAYERS) else ()
    entries = (_entry(axes) for axes in mesh_axes(weight, layout))
    return P(*stacked, *entries)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if len(axes) <= 1:
        return axes[0] if axes else None
    return axes
