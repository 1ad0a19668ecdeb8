"""Which devices a collective joins, in every spelling of HLO, and along which mesh axes they lie.

    {{0,1},{2,3}}                        written out
    [2,8]<=[8,2]T(1,0)                   numbers 0, 1, ... as [8,2], transposed, cut into 2 groups
    mesh['data'=8,'tensor'=2] {'data'}   the devices that differ in these axes alone
    {{0,1},{1,0}}                        pairs of sender and receiver

Devices are numbered in the mesh's order, the last axis fastest. A group along part of an axis is
named with its ways, `fsdp:4`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

_LIST = re.compile(r"\{([\d,\s]*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\]\s*\{(.*)\}", re.DOTALL)
_MESH_AXIS = re.compile(r"'([^']*)'\s*=\s*(\d+)")
_USED_AXIS = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
UNALIGNED = "unaligned"

type Groups = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def parse_groups(text: str, devices: int) -> Groups | None:
    """Groups of devices; None where the spelling is unknown.

    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4), parse_groups("{}", 2)
    (((0, 2), (1, 3)), ((0, 1),))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    """
    text = text.strip()
    if text in {"", "{}", "{{}}"}:
        return (tuple(range(devices)),)
    if mesh := _MESH.match(text):
        return _of_mesh(mesh.group(1), mesh.group(2))
    if iota := _IOTA.match(text):
        return _of_iota(*iota.groups())
    if text.startswith("{{"):
        lists = (_numbers(found) for found in _LIST.findall(text))
        return tuple(group for group in lists if group)
    return None


def parse_pairs(text: str) -> Groups:
    """Senders and receivers of a permutation.

    >>> parse_pairs("{{0,1},{1,0}}")
    ((0, 1), (1, 0))
    """
    return tuple(_numbers(found) for found in _LIST.findall(text))


def mesh_in(text: str) -> dict[str, int]:
    """The mesh that a group names; empty where it names none.

    >>> mesh_in("mesh['data'=8,'tensor'=2] {'data'}")
    {'data': 8, 'tensor': 2}
    """
    mesh = _MESH.match(text.strip())
    return {n: int(size) for n, size in _MESH_AXIS.findall(mesh.group(1))} if mesh else {}


def axes_of(members: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the members of a group lie.

    >>> mesh = {"data": 2, "fsdp": 4, "tensor": 2}
    >>> axes_of((0, 2, 4, 6), mesh), axes_of((0, 2), mesh), axes_of((0, 3), mesh)
    (('fsdp',), ('fsdp:2',), ('unaligned',))
    """
    if math.prod(mesh.values()) <= max(members, default=0):
        return (UNALIGNED,)
    places = [_place(member, mesh) for member in members]
    named, ways = [], 1
    for number, (axis, size) in enumerate(mesh.items()):
        taken = len({place[number] for place in places})
        ways *= taken
        if taken > 1:
            named.append(axis if taken == size else f"{axis}:{taken}")
    return tuple(named) if ways == len(set(members)) else (UNALIGNED,)


def axes_crossed(pairs: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which a permutation sends.

    >>> axes_crossed(((0, 1), (1, 0)), {"data": 2, "tensor": 2})
    ('tensor',)
    """
    if any(math.prod(mesh.values()) <= max(pair) for pair in pairs if pair):
        return (UNALIGNED,)
    crossed = set()
    for pair in pairs:
        ends = [_place(device, mesh) for device in pair]
        crossed |= {n for n, values in enumerate(zip(*ends, strict=True)) if len(set(values)) > 1}
    return tuple(axis for number, axis in enumerate(mesh) if number in crossed)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


def _place(device: int, mesh: Mapping[str, int]) -> tuple[int, ...]:
    place = []
    for size in reversed(tuple(mesh.values())):
        place.append(device % size)
        device //= size
    return tuple(reversed(place))


def _of_iota(shape: str, dims: str, order: str | None) -> Groups:
    sizes = _numbers(dims)
    turned = _numbers(order) if order else tuple(range(len(sizes)))
    return _cut(_turned(sizes, turned), _numbers(shape)[-1])


def _of_mesh(mesh: str, used: str) -> Groups | None:
    if "device_ids" in mesh:  # devices in an order of their own; not met in a compiled program
        return None
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(mesh)]
    sizes: list[int] = []
    inside: list[int] = []
    named = {name: (pre, size) for name, pre, size in _USED_AXIS.findall(used)}
    for name, size in axes:
        if name not in named:
            sizes.append(size)
            continue
        pre, part = named[name]
        if not part:
            inside.append(len(sizes))
            sizes.append(size)
        else:  # 'x':(2)4 is the second of the factors 2, 4, rest
            inside.append(len(sizes) + 1)
            sizes += [int(pre), int(part), size // int(pre) // int(part)]
    outside = [number for number in range(len(sizes)) if number not in inside]
    members = math.prod(sizes[number] for number in inside)
    return _cut(_turned(tuple(sizes), (*outside, *inside)), members)


def _turned(sizes: tuple[int, ...], order: Sequence[int]) -> list[int]:
    """0, 1, ... as an array of these sizes, its dims put in this order, flat again."""
    strides = [math.prod(sizes[number + 1 :]) for number in range(len(sizes))]
    return [
        sum(at * strides[dim] for at, dim in zip(place, order, strict=True))
        for place in product(*(range(sizes[dim]) for dim in order))
    ]


def _cut(numbers: Sequence[int], members: int) -> Groups:
    return tuple(
        tuple(numbers[begin : begin + members]) for begin in range(0, len(numbers), members)
    )
