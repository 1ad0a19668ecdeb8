import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.proof.hlo.groups import axes_crossed, axes_of, mesh_in, parse_groups, parse_pairs

MESH = {"data": 2, "fsdp": 4, "tensor": 2}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_iota_is_reshape_transpose_reshape(dims: list[int], random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(dims)))
    random.shuffle(order)
    total = math.prod(dims)
    members = random.choice([n for n in range(1, total + 1) if total % n == 0])
    sizes, turned = (",".join(map(str, numbers)) for numbers in (dims, order))
    text = f"[{total // members},{members}]<=[{sizes}]T({turned})"
    wanted = np.arange(total).reshape(dims).transpose(order).reshape(-1, members)
    assert parse_groups(text, total) == tuple(map(tuple, wanted.tolist()))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_mesh_axes_gather_what_differs_in_them_alone(sizes: list[int], data: st.DataObject) -> None:
    names = [f"a{number}" for number in range(len(sizes))]
    used = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    used.sort()
    axes = ",".join(f"'{name}'={size}" for name, size in zip(names, sizes, strict=True))
    inside = ",".join(f"'{name}'" for name in used)
    groups = parse_groups(f"mesh[{axes}] {{{inside}}}", math.prod(sizes))
    assert groups is not None
    assert sorted(d for group in groups for d in group) == list(range(math.prod(sizes)))
    mesh = dict(zip(names, sizes, strict=True))
    wanted = tuple(name for name in used if mesh[name] > 1)
    assert all(axes_of(group, mesh) == wanted for group in groups)


def test_a_part_of_an_axis() -> None:
    assert parse_groups("mesh['x'=8] {'x':(2)2}", 8) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_the_spellings_agree() -> None:
    written = parse_groups("{{0,2,4,6},{1,3,5,7},{8,10,12,14},{9,11,13,15}}", 16)
    assert written == parse_groups("mesh['data'=2,'fsdp'=4,'tensor'=2] {'fsdp'}", 16)
    assert written == parse_groups("[4,4]<=[2,4,2]T(0,2,1)", 16)


def test_no_groups_are_all_devices_and_unknown_spellings_none() -> None:
    assert parse_groups("{}", 3) == ((0, 1, 2),)
    assert parse_groups("<<8>>", 8) is None


@pytest.mark.parametrize(
    "text",
    [
        "[1,4]<=[5]",
        "[2,4]<=[4]",
        "[0]<=[0]",
        "[0,4]<=[4]",
        "[4,0]<=[4]",
        "[1,0]<=[0]",
        "[2,2]<=[2,2]T(5,7)",
        "[1,4]<=[2,2]T(0,0)",
        "[1,4]<=[2,2]T(0)",
        "[1,4]<=[4]T(0)x",
        "[1,4]<=[" + "1," * 100 + "4]",
        "[1,8]<=[8]",
        "[1,1000000000]<=[1000000000]",  # gigabytes, were it written out
        f"[1,{'9' * 5000}]<=[{'9' * 5000}]",
        "mesh['data'=4] {'nope'}",
        "mesh['data'=0] {'data'}",
        "mesh['data'=4] {'data':(0)0}",
        "mesh['data'=4] {'data':(3)5}",
        "mesh['data'=4] {'data':(1)2,'data':(2)2}",
        "mesh['a'=2,'a'=2] {'a'}",
        "mesh['a'=2,'b'] {'a'}",
        "mesh['data'=8] {'data'}",
        "mesh['data'=1000000000] {'data'}",
        "{{0,1,2,3},{4,5,6,7}}",
        "{{0,0,0,0}}",
        "{{0,1},{1,2}}",
        "{{-1,2}}",
        "{{0,1},x}",
        "{0,1}",
        "0,1",
        "{{},{}}",
        "garbage",
    ],
)
def test_groups_that_cannot_be_are_none(text: str) -> None:
    assert parse_groups(text, 4) is None


@pytest.mark.parametrize(
    "text", ["{{0,1},{0,2}}", "{{0,1},{2,1}}", "{{0}}", "{{0,1,2}}", "{{0,4}}", "{{-1,0}}", "what"]
)
def test_pairs_that_cannot_be_are_none(text: str) -> None:
    assert parse_pairs(text, 4) is None


def test_devices_may_be_by_themselves() -> None:
    alone = ((0,), (1,), (2,), (3,))
    assert parse_groups("[4,1]<=[4]", 4) == parse_groups("{{0},{1},{2},{3}}", 4) == alone
    assert parse_groups("mesh['a'=1,'b'=4] {'a'}", 4) == alone


def test_axes() -> None:
    assert axes_of((0, 1), MESH) == ("tensor",)
    assert axes_of(range(8), MESH) == ("fsdp", "tensor")
    assert axes_of((0, 4), MESH) == ("fsdp:2",)
    assert axes_of((0, 3, 5), MESH) == ("unaligned",)
    assert axes_of((0, 99), MESH) == ("unaligned",)


def test_permutations() -> None:
    pairs = parse_pairs("{{0,14},{2,0},{4,2}}", 16)
    assert pairs == ((0, 14), (2, 0), (4, 2))
    assert axes_crossed(pairs, {"fsdp": 8, "tensor": 2}) == ("fsdp",)
    assert axes_crossed(((0, 3),), {"fsdp": 8, "tensor": 2}) == ("fsdp", "tensor")


@pytest.mark.parametrize("text", ["{{0,1}}", "[2,8]<=[16]"])
def test_other_spellings_name_no_mesh(text: str) -> None:
    assert mesh_in(text) == {}
