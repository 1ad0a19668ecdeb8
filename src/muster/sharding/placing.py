"""Other placements on a torus than the rule's: read from a plan's `layout.torus`, and listed.

    "torus": {"tensor": ["z:4"], "fsdp": ["y", "x"], "data": ["z:8"]}

gives each mesh axis its physical axes, outermost first; `z` is a whole one, `z:4` the nearest 4 of
its chips that no inner mesh axis has. Inner are, in this order, tensor, sequence, expert, fsdp,
data, stage. The rule, `sharding.torus`, prints what it chose the same way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from muster.errors import BadInput, shorten
from muster.sharding.mesh import Layout
from muster.sharding.torus import (
    AXIS_NAMES,
    BLOCK,
    CHIP_AXIS,
    Free,
    Piece,
    free_axes,
    placement,
    split_off,
)

INNERMOST_FIRST = ("tensor", *reversed(BLOCK), "data", "stage")

type Torus = Mapping[str, tuple[str, ...]]


def as_torus(pieces: Mapping[str, tuple[Piece, ...]]) -> Torus:
    """A placement as a plan writes it."""
    return {name: tuple(map(str, own)) for name, own in pieces.items() if own}


def placed(
    shape: Sequence[int],
    layout: Layout,
    torus: Torus | None,
    *,
    devices_per_chip: int = 1,
) -> dict[str, tuple[Piece, ...]]:
    """The pieces of each mesh axis of one slice: those that a plan names, else the rule's.

    Args:
        shape: chips along each physical axis.
        layout: ways over chips, or over devices where a chip has several.
        torus: of chips; None for the rule.
        devices_per_chip: as in `sharding.torus.placement`.

    Raises:
        BadInput: the physical axes that are named are not there, or come to other ways.

    >>> found = placed((4, 4, 8), Layout(fsdp=32, tensor=4), {"tensor": ("z:4",),
    ...                                                       "fsdp": ("x", "y", "z:2")})
    >>> found["fsdp"][-1]
    Piece(axis=2, length=8, ways=2, stride=4)
    """
    if torus is None:
        return placement(shape, layout, devices_per_chip=devices_per_chip)
    unknown = next((name for name in torus if name not in INNERMOST_FIRST), None)
    if unknown is not None:
        raise BadInput(
            f"torus: {shorten(unknown)} is no mesh axis of a slice; they are "
            f"{', '.join(INNERMOST_FIRST)}"
        )
    free = {AXIS_NAMES[axis.axis]: axis for axis in free_axes(shape)}
    taken = {name: _take_named(name, torus.get(name, ()), free) for name in INNERMOST_FIRST}
    block = _joined([piece for name in BLOCK for piece in taken[name]])
    if devices_per_chip > 1:
        block.append(Piece(CHIP_AXIS, devices_per_chip, devices_per_chip, 1))
    found = {
        "tensor": taken["tensor"],
        **{name: split_off(block, getattr(layout, name)) for name in reversed(BLOCK)},
        "data": taken["data"],
        "stage": taken["stage"],
    }
    for name, pieces in found.items():
        _check(name, pieces, getattr(layout, name))
    if block:
        raise BadInput(f"torus: what shards the weights takes {' '.join(map(str, block))} too many")
    return found


def _take_named(name: str, named: Sequence[str], free: Mapping[str, Free]) -> tuple[Piece, ...]:
    """One mesh axis's pieces, the nearest chips that are left of each physical axis."""
    pieces: list[Piece] = []
    for text in named:
        letter, colon, number = text.partition(":")
        axis = free.get(letter)
        if axis is None:
            raise BadInput(
                f"torus: {name} takes {shorten(text)}, and the slice's axes are {', '.join(free)}"
            )
        if any(piece.axis == axis.axis for piece in pieces):
            raise BadInput(f"torus: {name} takes {letter} twice; take it once")
        ways = int(number) if number.isdecimal() and number.isascii() else 0
        ways = ways if colon else axis.length
        if ways < 2 or axis.left % ways:
            raise BadInput(
                f"torus: {name} takes {shorten(text)}, and {axis.left} of {letter}'s "
                f"{axis.length} chips are left"
            )
        pieces.append(axis.take(ways))
    return tuple(pieces)


def _joined(block: Sequence[Piece]) -> list[Piece]:
    """Neighbours that are one run of chips as one piece."""
    joined: list[Piece] = []
    for piece in block:
        last = joined[-1] if joined else None
        if last and last.axis == piece.axis and last.stride == piece.stride * piece.ways:
            joined[-1] = Piece(piece.axis, piece.length, last.ways * piece.ways, piece.stride)
        else:
            joined.append(piece)
    return joined


def _check(name: str, pieces: Sequence[Piece], ways: int) -> None:
    if math.prod(piece.ways for piece in pieces) != ways:
        taken = " x ".join(map(str, pieces)) or "nothing"
        raise BadInput(
            f"torus: {name} takes {taken}, which is not its {ways} ways; leave torus out for the "
            "usual placement"
        )
    if len({piece.axis for piece in pieces}) < len(pieces):
        raise BadInput(f"torus: {name} takes parts of one axis that are not next to each other")


def placements(shape: Sequence[int], layout: Layout) -> Iterator[Torus]:
    """Other placements than the rule's, those with most whole axes first; none twice.

    Axes of the same length are the same, and so are the axes of a group in another order: one
    collective goes over all of them.

    >>> next(placements((4, 4, 8), Layout(fsdp=32, tensor=4)))
    {'tensor': ('z:4',), 'fsdp': ('y', 'x', 'z:2')}
    """
    usual = placement(shape, layout)
    if math.prod(p.ways for own in usual.values() for p in own) != math.prod(shape):
        return
    seen = {_signature(usual)}
    found: list[tuple[int, Torus]] = []
    several = sum(getattr(layout, name) > 1 for name in BLOCK) > 1
    for tensor in _splits(layout.tensor, shape):
        after = [size // ways for size, ways in zip(shape, tensor, strict=True)]
        for block in _splits(layout.weight_shards, after):
            data = [size // ways for size, ways in zip(after, block, strict=True)]
            if math.prod(data) != layout.data * layout.stage or layout.stage > 1:
                continue
            for turned in (False, True) if several else (False,):
                torus = _torus(shape, layout, (tensor, block, data), turned=turned)
                if torus is None:
                    continue
                pieces = placed(shape, layout, torus)
                if (signature := _signature(pieces)) not in seen:
                    seen.add(signature)
                    found.append((_parts(pieces), torus))
    yield from (torus for _, torus in sorted(found, key=lambda each: each[0]))


def _splits(ways: int, free: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All numbers of chips along each axis that come to so many ways."""
    each = [[part for part in range(1, size + 1) if size % part == 0] for size in free]
    yield from (split for split in product(*each) if math.prod(split) == ways)


def _torus(
    shape: Sequence[int],
    layout: Layout,
    split: tuple[Sequence[int], Sequence[int], Sequence[int]],
    *,
    turned: bool,
) -> Torus | None:
    """A placement by the chips along each axis of tensor, of the block and of data."""
    free = free_axes(shape)
    tensor, block, data = (
        [
            axis.take(ways[axis.axis])
            for axis in sorted(free, key=lambda axis: (-axis.left, -axis.axis))
            if ways[axis.axis] > 1
        ]
        for ways in split
    )
    if turned:
        block.reverse()
    inside = {name: split_off(block, getattr(layout, name)) for name in reversed(BLOCK)}
    pieces = {"tensor": tuple(tensor), **{name: inside[name] for name in BLOCK}}
    if any(math.prod(p.ways for p in pieces[name]) != getattr(layout, name) for name in pieces):
        return None
    return as_torus({**pieces, "data": tuple(data)})


def _signature(pieces: Mapping[str, Sequence[Piece]]) -> tuple[object, ...]:
    """The same for placements that differ by the order of a group's axes, or their names alone."""
    by_axis: dict[int, list[tuple[object, ...]]] = {}
    for name in INNERMOST_FIRST:
        for piece in pieces.get(name, ()):
            held = (piece.length, name, piece.ways, piece.stride)
            by_axis.setdefault(piece.axis, []).append(held)
    return tuple(sorted(tuple(held) for held in by_axis.values()))


def _parts(pieces: Mapping[str, Sequence[Piece]]) -> int:
    """How many pieces are no whole axes, and those that stand apart once more."""
    every = [piece for own in pieces.values() for piece in own]
    return sum((piece.ways < piece.length) + (piece.stride > 1) for piece in every) + len(every)
