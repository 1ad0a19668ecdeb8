"""Which chips of a torus each mesh axis takes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.sharding.mesh import Layout
from muster.sharding.torus import Piece, placement

SHAPES = st.sampled_from([(4, 4, 4), (4, 4, 8), (8, 8, 8), (16, 16, 32), (16, 16), (2, 2, 1)])
NAMES = ("data", "fsdp", "sequence", "expert", "tensor")


def places(pieces: tuple[Piece, ...]) -> set[tuple[int, ...]]:
    """Offsets of a group's chips along the physical axes."""
    found: set[tuple[int, ...]] = {(0, 0, 0)}
    for piece in pieces:
        found = {
            tuple(at + n * piece.stride * (axis == piece.axis) for axis, at in enumerate(spot))
            for spot in found
            for n in range(piece.ways)
        }
    return found


@given(shape=SHAPES, data=st.data())
def test_all_chips_are_taken_once(shape: tuple[int, ...], data: st.DataObject) -> None:
    left = math.prod(shape)
    ways: list[int] = []
    for _ in NAMES[:-1]:
        ways.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= ways[-1]
    layout = Layout(data=ways[0], fsdp=ways[1], sequence=ways[2], expert=ways[3], tensor=left)
    found = placement(shape, layout)
    every = tuple(piece for pieces in found.values() for piece in pieces)
    assert math.prod(piece.ways for piece in every) == math.prod(shape)
    assert len(places(every)) == math.prod(shape)
    for name in NAMES:
        assert math.prod(piece.ways for piece in found[name]) == getattr(layout, name)


@pytest.mark.parametrize(
    ("shape", "layout", "axis", "taken"),
    [
        # The block that shards weights has whole axes wherever any group has.
        ((16, 16, 32), Layout(data=4, fsdp=256, sequence=2, tensor=4), "fsdp", "z y:8"),
        ((16, 16, 32), Layout(data=4, fsdp=512, tensor=4), "fsdp", "z y"),
        ((4, 4, 4), Layout(fsdp=16, tensor=4), "tensor", "x"),
        ((4, 4, 4), Layout(fsdp=16, tensor=4), "fsdp", "y z"),
    ],
)
def test_the_block_has_whole_axes(
    shape: tuple[int, ...], layout: Layout, axis: str, taken: str
) -> None:
    assert " ".join(map(str, placement(shape, layout)[axis])) == taken


def test_devices_of_a_chip_are_the_innermost_of_the_block() -> None:
    found = placement((2, 2, 2), Layout(fsdp=16), devices_per_chip=2)
    assert found["fsdp"][-1] == Piece(3, 2, 2, 1)
    assert placement((2, 2, 2), Layout(tensor=16), devices_per_chip=2) == {}
