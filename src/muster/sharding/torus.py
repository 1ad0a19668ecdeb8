"""Which chips of a torus each mesh axis takes: one rule for planner, compiler check and trainer.

Mesh axes are laid out innermost first: tensor; then all ways that shard the weights as one block,
in it sequence, expert, fsdp; then data. A group takes whole physical axes where its size is theirs,
the largest first, else parts: of the shortest axis first, neighbours before chips that stand apart.

So the block, over which weights are gathered and gradients scattered, has whole axes if any group
has. A group with the links of its axes to itself is what the compiler has good collectives for: on
v5p:16x16x32, weights gathered over 512 chips that stand 4 apart on one axis share its links with
three other groups, and take four times as long as over two whole axes.

Letters of physical axes: x, y, z.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muster.sharding.mesh import Layout

AXIS_NAMES = "xyzc"  # the last are the devices of a chip
CHIP_AXIS = 3
BLOCK = ("fsdp", "expert", "sequence")  # outermost first


@dataclass(frozen=True, slots=True)
class Piece:
    """Chips along one physical axis: `ways` of them, `stride` apart.

    Attributes:
        axis: number of the physical axis.
        length: chips along the whole of it.
    """

    axis: int
    length: int
    ways: int
    stride: int

    @property
    def closes(self) -> bool:
        """Whether they reach all the way round, so that a ring closes where the axis wraps."""
        return self.ways * self.stride == self.length

    def __str__(self) -> str:
        name = AXIS_NAMES[self.axis]
        return name if self.ways == self.length else f"{name}:{self.ways}"


@dataclass(slots=True)
class Free:
    """What is left of a physical axis: `left` chips, `stride` apart."""

    axis: int
    length: int
    left: int
    stride: int = 1

    def take(self, ways: int) -> Piece:
        """The nearest of them."""
        piece = Piece(self.axis, self.length, ways, self.stride)
        self.left //= ways
        self.stride *= ways
        return piece


def free_axes(shape: Sequence[int]) -> list[Free]:
    """A torus of which nothing is taken."""
    return [Free(axis, length, length) for axis, length in enumerate(shape) if length > 1]


def take(axes: Sequence[Free], ways: int) -> tuple[Piece, ...]:
    """Take a group's chips off the axes, outermost first; fewer where they do not divide.

    >>> " ".join(map(str, take(free_axes((16, 16, 32)), 512)))
    'z x'
    >>> " ".join(map(str, take(free_axes((16, 16, 32)), 4)))
    'x:4'
    """
    pieces: list[Piece] = []
    for axis in sorted(axes, key=lambda axis: (axis.left != ways, -axis.left)):
        whole = math.prod(piece.ways for piece in pieces) * axis.left
        if axis.left > 1 and ways % whole == 0:
            pieces.append(axis.take(axis.left))
    left = ways // math.prod(piece.ways for piece in pieces)
    for axis in sorted(axes, key=lambda axis: axis.left):
        part = math.gcd(left, axis.left)
        if part > 1:
            pieces.append(axis.take(part))
            left //= part
    return tuple(pieces)


def placement(
    shape: Sequence[int], layout: Layout, *, devices_per_chip: int = 1
) -> dict[str, tuple[Piece, ...]]:
    """The pieces of each mesh axis of one slice, outermost first; none for an axis of one way.

    Where ways do not divide into the torus, the pieces come to fewer chips.

    Args:
        shape: chips along each physical axis.
        layout: ways over chips, or over devices where a chip has several.
        devices_per_chip: these count as one more physical axis, the innermost of the block.

    >>> found = placement((16, 16, 32), Layout(data=4, fsdp=256, sequence=2, tensor=4))
    >>> {name: " ".join(map(str, pieces)) for name, pieces in found.items() if pieces}
    {'tensor': 'x:4', 'fsdp': 'z y:8', 'sequence': 'y:2', 'data': 'x:4'}
    """
    if layout.weight_shards % devices_per_chip:
        return {}
    axes = free_axes(shape)
    tensor = take(axes, layout.tensor)
    block = list(take(axes, layout.weight_shards // devices_per_chip))
    if devices_per_chip > 1:
        block.append(Piece(CHIP_AXIS, devices_per_chip, devices_per_chip, 1))
    inside = {name: split_off(block, getattr(layout, name)) for name in reversed(BLOCK)}
    return {
        "tensor": tensor,
        **{name: inside[name] for name in BLOCK},
        "data": take(axes, layout.data),
        "stage": take(axes, layout.stage),
    }


def split_off(pieces: list[Piece], ways: int) -> tuple[Piece, ...]:
    """Take the innermost ways of a group for a group inside it; `pieces` keeps the others."""
    taken: list[Piece] = []
    for number in reversed(range(len(pieces))):
        piece = pieces[number]
        part = math.gcd(ways, piece.ways)
        ways //= part
        if part > 1:
            taken.insert(0, Piece(piece.axis, piece.length, part, piece.stride))
        pieces[number] = Piece(piece.axis, piece.length, piece.ways // part, piece.stride * part)
    pieces[:] = [piece for piece in pieces if piece.ways > 1]
    return tuple(taken)
