"""Placements that a plan names: the rule's own read back, others, and what is none."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.sharding.placing import as_torus, placed, placements
from muster.sharding.torus import Piece, placement

SHAPES = ((4, 4, 4), (2, 2, 4), (4, 4, 8), (8, 4), (16, 16, 32))
POWERS = (1, 2, 4, 8)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout]:
    """A torus and a layout that fills it."""
    shape = draw(st.sampled_from(SHAPES))
    left = math.prod(shape)
    ways: dict[str, Any] = {}
    for name in ("tensor", "sequence", "fsdp"):
        ways[name] = draw(st.sampled_from([each for each in POWERS if left % each == 0]))
        left //= ways[name]
    return shape, Layout(**ways, data=left)


def chips(shape: tuple[int, ...], pieces: dict[str, tuple[Piece, ...]]) -> list[tuple[int, ...]]:
    """Where each place of the mesh is."""
    every = [piece for own in pieces.values() for piece in own]
    found = []
    for place in product(*(range(piece.ways) for piece in every)):
        at = [0] * len(shape)
        for piece, number in zip(every, place, strict=True):
            at[piece.axis] += number * piece.stride
        found.append(tuple(at))
    return found


@given(layouts())
def test_the_rules_own_is_read_back(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, layout = case
    usual = placement(shape, layout)
    assert placed(shape, layout, None) == usual
    if math.prod(p.ways for own in usual.values() for p in own) == math.prod(shape):
        assert placed(shape, layout, as_torus(usual)) == usual


@given(layouts(), st.integers(0, 5))
def test_others_take_every_chip_once(case: tuple[tuple[int, ...], Layout], number: int) -> None:
    shape, layout = case
    for place, torus in enumerate(placements(shape, layout)):
        if place < number:
            continue
        pieces = placed(shape, layout, torus)
        assert as_torus(pieces) == torus
        assert torus != as_torus(placement(shape, layout))
        for name, own in pieces.items():
            assert math.prod(piece.ways for piece in own) == getattr(layout, name)
        if math.prod(shape) <= 128:
            where = chips(shape, pieces)
            assert len(set(where)) == len(where) == math.prod(shape)
            assert all(at < size for place in where for at, size in zip(place, shape, strict=True))
        break


def test_devices_of_a_chip_are_the_innermost_of_the_block() -> None:
    chips_alone = {"tensor": ("z:4",), "fsdp": ("y", "x")}
    found = placed((4, 4, 4), Layout(fsdp=32, tensor=4), chips_alone, devices_per_chip=2)
    assert [str(piece) for piece in found["fsdp"]] == ["y", "x", "c"]
    split = {"fsdp": ("z", "y:2"), "sequence": ("y:2",), "tensor": ("x",)}
    found = placed((4, 4, 4), Layout(fsdp=16, sequence=2, tensor=4), split, devices_per_chip=2)
    assert {name: [str(p) for p in own] for name, own in found.items() if own} == {
        "tensor": ["x"],
        "sequence": ["c"],
        "fsdp": ["z", "y"],  # parts next to each other are one
    }


@pytest.mark.parametrize(
    ("torus", "said"),
    [
        ({"tensors": ("x",)}, "'tensors' is no mesh axis of a slice; they are tensor, sequence"),
        ({"tensor": ("w",)}, "tensor takes 'w', and the slice's axes are x, y, z"),
        ({"tensor": ("x:3",)}, "tensor takes 'x:3', and 4 of x's 4 chips are left"),
        ({"tensor": ("x:",)}, "tensor takes 'x:'"),
        ({"tensor": ("x:-2",)}, "tensor takes 'x:-2'"),
        ({"tensor": ("x:2", "x:2")}, "takes x twice"),
        ({"tensor": ("x",), "fsdp": ("x", "y")}, "fsdp takes 'x', and 1 of x's 4 chips are left"),
        ({"tensor": ("x:2",), "fsdp": ("y", "z")}, "tensor takes x:2, which is not its 4 ways"),
        ({"tensor": ("x",), "fsdp": ("y",)}, "fsdp takes y, which is not its 16 ways"),
        ({"tensor": ("x",)}, "fsdp takes nothing, which is not its 16 ways; leave torus out"),
        ({"tensor": ("x:2", "y:2"), "fsdp": ("z", "y:2", "x:2"), "expert": ()}, ""),
    ],
)
def test_what_is_none_is_one_line(torus: dict[str, tuple[str, ...]], said: str) -> None:
    layout = Layout(fsdp=16, tensor=4)
    if not said:
        assert placed((4, 4, 4), layout, torus)
        return
    with pytest.raises(BadInput) as refused:
        placed((4, 4, 4), layout, torus)
    assert said in str(refused.value)
