"""The mesh of a layout: which device stands where.

On TPUs every axis of the mesh takes the physical axes that `muster.sharding.torus` gives it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.sharding.placing import Torus, placed
from muster.sharding.torus import AXIS_NAMES, Piece

AXES = ("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor")
SPLIT_AXIS = "fsdp"  # has an axis of the mesh for each of its physical axes


def make_mesh(
    layout: Layout,
    devices: Sequence[jax.Device] | None = None,
    torus: Torus | None = None,
) -> Mesh:
    """The mesh of a layout, outermost axis first, on the first of `devices` that it needs.

    On TPUs every mesh axis takes the physical axes that `sharding.torus` gives it, and `fsdp` is
    several axes of the mesh where those are several: `fsdp_z`, `fsdp_y`.

    Args:
        layout: ways over devices.
        devices: to lay it over; None for all that there are.
        torus: physical axes of each mesh axis, where a plan names others than the rule.

    Raises:
        BadInput: there are fewer devices than the layout has chips, or the torus is another one.
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
        grid = np.stack([_on_torus(layout, own, torus) for own in used])
        ways = mesh_ways(layout, torus_pieces(layout, used[0], torus))
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
            ways |= {split_name(piece): piece.ways for piece in own}
        else:
            ways[axis] = getattr(layout, axis)
    return ways


def split_name(piece: Piece) -> str:
    """What the axis of the mesh over one of its physical axes is called."""
    return f"{SPLIT_AXIS}_{AXIS_NAMES[piece.axis]}"


def _on_torus(
    layout: Layout, devices: list[jax.Device], torus: Torus | None
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """The devices of one slice in the mesh's order, all of its axes but `slice`."""
    ways = tuple(getattr(layout, axis) for axis in AXES[1:])
    places, shape = _places(devices)
    pieces = torus_pieces(layout, devices, torus)
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


def torus_pieces(
    layout: Layout, devices: Sequence[jax.Device], torus: Torus | None = None
) -> Mapping[str, tuple[Piece, ...]]:
    """The physical axes of each mesh axis on one slice; empty where the ways do not fit a torus."""
    if devices[0].platform != "tpu":
        return {}
    _, shape = _places(devices)
    pieces = placed(shape[:-1], layout, torus, devices_per_chip=shape[-1])
    taken = math.prod(piece.ways for of_axis in pieces.values() for piece in of_axis)
    return pieces if taken == layout.chips_per_slice == math.prod(shape) else {}


def _places(devices: Sequence[jax.Device]) -> tuple[Any, tuple[int, ...]]:
    """Coordinates of devices, from 0, each with its number on its chip; and how many there are."""
    found = np.asarray([(*device.coords, device.core_on_chip) for device in devices])
    found -= found.min(axis=0)
    return found, tuple(int(size) for size in found.max(axis=0) + 1)
