"""Which devices a collective joins, in every spelling of HLO, and along which mesh axes they lie.

    {{0,1},{2,3}}                        written out
    [2,8]<=[8,2]T(1,0)                   numbers 0, 1, ... as [8,2], transposed, cut into 2 groups
    mesh['data'=8,'tensor'=2] {'data'}   the devices that differ in these axes alone
    {{0,1},{1,0}}                        pairs of sender and receiver

Devices are numbered in the mesh's order, the last axis fastest. A group along part of an axis is
named with its ways, `fsdp:4`.

Groups that cannot be are none: more devices than run the program, one of them twice, sizes that do
not match. That is seen before they are written out, as a few characters may ask for billions.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

# No device has a longer number, no mesh more axes.
_NUMBER, _MOST_DIMS = r"\d{1,9}", 64
_NUMBERS = rf"{_NUMBER}(?:,{_NUMBER})*"
_LISTS = re.compile(r"\{\s*\{[\d,\s]*\}(?:\s*,\s*\{[\d,\s]*\})*\s*\}")
_LIST = re.compile(r"\{([\d,\s]*)\}")
_LISTED = re.compile(rf"(?:\s*{_NUMBER}\s*(?:,\s*{_NUMBER}\s*)*)?")
_IOTA = re.compile(rf"\[({_NUMBER}),({_NUMBER})\]<=\[({_NUMBERS})\](?:T\(({_NUMBERS})\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\]\s*\{(.*)\}", re.DOTALL)
_MESH_AXIS = re.compile(rf"\s*'([^']*)'\s*=\s*({_NUMBER})\s*(?:,|$)")
_USED_AXIS = re.compile(rf"\s*'([^']*)'(?::\(({_NUMBER})\)({_NUMBER}))?\s*(?:,|$)")
UNALIGNED = "unaligned"

type Groups = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=4096)
def parse_groups(text: str, devices: int) -> Groups | None:
    """Groups of devices; None where the spelling is unknown, or no such groups can be.

    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4), parse_groups("{}", 2)
    (((0, 2), (1, 3)), ((0, 1),))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("[1,4]<=[5]", 8), parse_groups("{{0,9}}", 8), parse_groups("{{1,1}}", 8)
    (None, None, None)
    """
    text = text.strip()
    if text in {"", "{}", "{{}}"}:
        return (tuple(range(devices)),)
    if mesh := _MESH.fullmatch(text):
        return _of_mesh(mesh.group(1), mesh.group(2), devices)
    if iota := _IOTA.fullmatch(text):
        return _of_iota(*iota.groups(), devices=devices)
    groups = _lists(text) or ()
    members = [member for group in groups for member in group]
    if len(set(members)) < len(members) or max(members, default=devices) >= devices:
        return None
    return tuple(group for group in groups if group)


def parse_pairs(text: str, devices: int) -> Groups | None:
    """Senders and receivers of a permutation; None where there can be none such.

    >>> parse_pairs("{{0,1},{1,0}}", 2), parse_pairs("{}", 2)
    (((0, 1), (1, 0)), ())
    >>> parse_pairs("{{0,1},{2,1}}", 4), parse_pairs("{{0,1,2}}", 4), parse_pairs("{{0,4}}", 4)
    (None, None, None)
    """
    if text.strip() in {"", "{}"}:
        return ()
    pairs = _lists(text.strip())
    if not pairs or any(len(pair) != 2 or max(pair) >= devices for pair in pairs):
        return None
    apart = all(len(set(ends)) == len(pairs) for ends in zip(*pairs, strict=True))
    return pairs if apart else None


def mesh_in(text: str) -> dict[str, int]:
    """The mesh that groups name; empty where they name none.

    >>> mesh_in("mesh['data'=8,'tensor'=2] {'data'}")
    {'data': 8, 'tensor': 2}
    """
    mesh = _MESH.fullmatch(text.strip())
    return {n: int(size) for n, size in _each(_MESH_AXIS, mesh.group(1)) or ()} if mesh else {}


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


def _lists(text: str) -> Groups | None:
    """Lists of numbers in a list; None where it is anything else."""
    if not _LISTS.fullmatch(text):
        return None
    found = _LIST.findall(text)
    return tuple(map(_numbers, found)) if all(map(_LISTED.fullmatch, found)) else None


def _each(part: re.Pattern[str], text: str) -> list[tuple[str, ...]] | None:
    """The parts of a list between commas; None where one is of another form."""
    found, place = [], 0
    while place < len(text):
        match = part.match(text, place)
        if match is None:
            return None
        found.append(match.groups(""))
        place = match.end()
    return found


def _place(device: int, mesh: Mapping[str, int]) -> tuple[int, ...]:
    place = []
    for size in reversed(tuple(mesh.values())):
        place.append(device % size)
        device //= size
    return tuple(reversed(place))


def _of_iota(
    groups: str, members: str, dims: str, order: str | None, *, devices: int
) -> Groups | None:
    sizes = _numbers(dims)
    turned = _numbers(order) if order else tuple(range(len(sizes)))
    if sorted(turned) != list(range(len(sizes))) or not _can_be(sizes, devices):
        return None
    if int(groups) * int(members) != math.prod(sizes):
        return None
    return _cut(_turned(sizes, turned), int(members))


def _of_mesh(mesh: str, used: str, devices: int) -> Groups | None:
    axes, parts = _each(_MESH_AXIS, mesh), _each(_USED_AXIS, used)
    if not axes or parts is None:  # such as devices in an order of their own, met in no program
        return None
    ways = {name: int(size) for name, size in axes}
    named = {name: (pre, size) for name, pre, size in parts}
    twice = len(ways) < len(axes) or len(named) < len(parts)
    if twice or not named.keys() <= ways.keys() or not _can_be(tuple(ways.values()), devices):
        return None
    sizes: list[int] = []
    inside: list[int] = []
    for name, size in ways.items():
        if name not in named:
            sizes.append(size)
            continue
        pre, part = named[name]
        if not part:
            inside.append(len(sizes))
            sizes.append(size)
        else:  # 'x':(2)4 is the second of the factors 2, 4, rest
            factors = int(pre) * int(part)
            if not factors or size % factors:
                return None
            inside.append(len(sizes) + 1)
            sizes += [int(pre), int(part), size // factors]
    outside = [number for number in range(len(sizes)) if number not in inside]
    members = math.prod(sizes[number] for number in inside)
    return _cut(_turned(tuple(sizes), (*outside, *inside)), members)


def _can_be(sizes: Sequence[int], devices: int) -> bool:
    """Whether there are as many devices as an array of these sizes holds."""
    return len(sizes) <= _MOST_DIMS and 0 < math.prod(sizes) <= devices


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
