"""How long a collective takes on a torus: from its bytes, its devices and the compiler's strategy.

A link carries B bytes/s each way. An axis on which a group closes a ring gives 2 B, a line B, and a
group whose chips stand s apart shares its links with s - 1 others. Then, of an array of V bytes,

    all-gather, reduce-scatter   V (n - 1) / n / R + hops
    all-reduce                   twice that
    all-to-all                   V longest / (8 B)       the bisection; a line counts double
    collective-permute           V load / B              load: arrays on the busiest link

R adds up what the strategy uses at once: one ring, or as many axes as it has colors. A ring that
goes once through all of a group is closed where the group has two axes, as a grid with an even
number of chips has a closed path. Groups on different axes share no links, so they run at once. The
two devices of a chip exchange over its own wires, six times as fast as a link ("TPU7x (Ironwood)"
in Google Cloud's documentation; taken for older chips of two devices too). Source of the others:
the book's Part 3, "A Deeper Dive into TPU Communication Primitives". Links reach the share of their
bandwidth that was fitted for the planner.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from muster.errors import BadInput
from muster.hardware import Cluster, Torus
from muster.proof.hlo.collectives import SLICE_AXIS, Collective
from muster.proof.hlo.groups import Groups
from muster.roofline.efficiency import efficiency

type Place = tuple[int, ...]
_X_Y_Z = 3
_CORE = 3
_LINKS_ON_A_CHIP = 6  # what the wires between two devices of a chip are worth


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """The links of one slice, and to other slices.

    Attributes:
        shape: chips along every axis.
        wrap: which axes close a ring.
        link: bytes/s of one link each way, as reached.
        dcn: bytes/s of one device to other slices, as reached.
        hop_seconds: latency of one step of a collective.
        devices_per_chip: devices that share a chip's links.
        places: x, y, z, core and slice of each device in order; empty where they are not known.
    """

    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    link: float
    dcn: float
    hop_seconds: float
    devices_per_chip: int
    places: tuple[Place, ...] = ()

    def seconds(self, collective: Collective) -> float:
        """Seconds of one run."""
        V, n = collective.array_bytes, collective.ways
        if n < 2 or V == 0:
            return 0.0
        share = (n - 1) / n
        if collective.axes == (SLICE_AXIS,) and not collective.groups:
            return V * share * _passes(collective.kind) / self.dcn
        if collective.kind == "collective-permute":
            return self._permute(collective.groups, V)
        group = self._group(collective.groups)
        if collective.kind in {"all-to-all", "ragged-all-to-all"}:
            return V * group.longest(n) / (8 * self.link) * group.shared + self.hop_seconds
        steps = _steps(collective.strategy.rings, n)
        seconds = V * share / self._rate(collective, group) + self.hop_seconds * steps / 2
        return seconds * _passes(collective.kind)

    def apart(self, collective: Collective) -> int:
        """How far apart the chips of its groups stand; as many groups share their links."""
        if collective.kind == "collective-permute":
            return 1
        return max(self._group(collective.groups).strides, default=1)

    def assumes_neighbours(self, collective: Collective) -> bool:
        """Whether nothing tells where the chips of its groups stand, and it matters."""
        chips = math.prod(self.shape) * self.devices_per_chip
        return not self.places and any(1 < len(group) < chips for group in collective.groups)

    def tracks(self, collective: Collective) -> tuple[str, ...]:
        """What a collective keeps busy: links of axes, in one direction if it is a shift.

        Of the torus's axes where the chips' places are known, else of the mesh's.
        """
        if collective.axes == (SLICE_AXIS,) and not collective.groups:
            return ("DCN",)
        group = self._group(collective.groups)
        if group.on_one_chip:
            return ("chip",)
        names = [f"ICI {'xyz'[axis]}" for axis in group.long_axes]
        names = names or [f"ICI {axis.partition(':')[0]}" for axis in collective.axes]
        directions: tuple[str, ...] = ("up", "down")
        if collective.kind == "collective-permute" and collective.groups:
            forward = sum(a < b for a, b in collective.groups) * 2 >= len(collective.groups)
            directions = ("up",) if forward else ("down",)
        return tuple(f"{name} {direction}" for name in names for direction in directions)

    def _rate(self, collective: Collective, group: "_Group") -> float:
        """R: bytes/s at which one chip of the group takes in the array."""
        strategy = collective.strategy
        if group.on_one_chip:
            return self.link * _LINKS_ON_A_CHIP
        if strategy.axes:
            rates = [group.rate(axis, self.link) for axis in strategy.axes]
            return sum(rates) * min(1.0, strategy.at_once / len(rates)) / group.shared
        if strategy.dims > 1 and group.long_axes:
            rates = sorted((group.rate(axis, self.link) for axis in group.long_axes), reverse=True)
            return sum(rates[: strategy.dims]) / group.shared
        both_ways = 2 if group.closes_a_ring and collective.ways > 2 else 1
        return self.link * both_ways * min(1.0, strategy.at_once) * group.nearness / group.shared

    def _group(self, groups: Groups) -> "_Group":
        chips, per_chip = math.prod(self.shape), self.devices_per_chip
        if not self.places and groups and len(groups[0]) == chips * per_chip:
            ones = (1,) * len(self.shape)  # all of the slice, whatever its devices' numbers
            return _Group(sizes=self.shape, strides=ones, rings=self.wrap, shared=1.0)
        if not groups or not self.places or max(groups[0]) >= len(self.places):
            whole = any(self.wrap)
            beside = bool(groups) and set(range(per_chip)) <= set(groups[0])
            shared = 1.0 if beside else float(per_chip)  # devices of a chip have numbers in a row
            return _Group(sizes=(), strides=(), rings=(whole,) * _X_Y_Z, shared=shared)
        places = [self.places[device] for device in groups[0]]
        return _group_at(tuple(places), self.shape, self.wrap, self.devices_per_chip)

    def _permute(self, pairs: Groups, V: float) -> float:
        load = 1
        if self.places and all(max(pair) < len(self.places) for pair in pairs):
            ends = tuple((self.places[a][:_X_Y_Z], self.places[b][:_X_Y_Z]) for a, b in pairs)
            load = _busiest_link(ends, self.shape, self.wrap)
        return V * load / self.link + self.hop_seconds


@dataclass(frozen=True, kw_only=True)
class _Group:
    """How a group of chips lies on the torus.

    Attributes:
        sizes: chips along every axis.
        strides: how far apart they stand.
        rings: whether an axis closes a ring.
        shared: groups that share the same chips' links (the other devices of its chips).
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    rings: tuple[bool, ...]
    shared: float

    def rate(self, axis: int, link: float) -> float:
        """Bytes/s along one axis."""
        stride = self.strides[axis] if axis < len(self.strides) else 1
        return link * (2 if axis < len(self.rings) and self.rings[axis] else 1) / stride

    @property
    def closes_a_ring(self) -> bool:
        """Whether a path through all of its chips comes back to its beginning over one link."""
        return any(self.rings) or len(self.long_axes) > 1 or not self.sizes

    @property
    def long_axes(self) -> tuple[int, ...]:
        """The axes that it has several chips along."""
        return tuple(axis for axis, size in enumerate(self.sizes) if size > 1)

    @property
    def on_one_chip(self) -> bool:
        """Whether its devices are those of a single chip."""
        return bool(self.sizes) and not self.long_axes

    @property
    def nearness(self) -> float:
        """One over the groups whose chips stand between its own."""
        return 1 / max((stride for stride in self.strides), default=1)

    def longest(self, ways: int) -> float:
        """Chips of its longest ring; a line counts double, and a stride as often as it is long."""
        lengths = [
            size * stride * (1 if ring else 2)
            for size, stride, ring in zip(self.sizes, self.strides, self.rings, strict=False)
            if size > 1
        ]
        return float(max(lengths, default=ways))


def interconnect(cluster: Cluster, coordinates: Sequence[Place] = ()) -> Interconnect:
    """The links of a TPU cluster.

    Args:
        cluster: the chips.
        coordinates: x, y, z, core and slice of each device, in the order of the program's devices.

    Raises:
        BadInput: the chips form no torus.
    """
    chip, torus = cluster.chip, cluster.chip.network
    if not isinstance(torus, Torus):
        raise BadInput(f"{cluster.name} has no torus; programs are timed on TPUs alone")
    fitted = efficiency(chip.id, "xla")
    return Interconnect(
        shape=cluster.slice.shape,
        wrap=cluster.slice.wrap,
        link=torus.link_bandwidth * fitted.near,
        dcn=torus.dcn_bandwidth_per_chip * fitted.far / chip.devices_per_chip,
        hop_seconds=fitted.hop_seconds,
        devices_per_chip=chip.devices_per_chip,
        places=tuple(tuple(place) for place in coordinates),
    )


def _steps(rings: Sequence[int], n: int) -> float:
    """Hops of a collective's phases, each round a ring; where sizes were not told, equal ones.

    >>> _steps((4, 4, 4), 64), _steps((0, 0, 0), 64), _steps((), 64)
    (9, 9.0, 63.0)
    """
    if rings and all(rings):
        return sum(ring - 1 for ring in rings)
    phases = len(rings) or 1
    return float(phases * (round(n ** (1 / phases), 9) - 1))


def _passes(kind: str) -> int:
    return 2 if kind == "all-reduce" else 1


@lru_cache(maxsize=4096)
def _group_at(
    places: tuple[Place, ...], shape: tuple[int, ...], wrap: tuple[bool, ...], per_chip: int
) -> _Group:
    sizes, strides, rings = [], [], []
    for axis in range(len(shape)):
        along = sorted({place[axis] for place in places})
        stride = math.gcd(*(later - earlier for earlier, later in pairwise(along)))
        sizes.append(len(along))
        strides.append(max(1, stride))
        rings.append(wrap[axis] and len(along) > 1 and len(along) * strides[-1] == shape[axis])
    cores = len({place[_CORE] for place in places if len(place) > _CORE}) or 1
    return _Group(
        sizes=tuple(sizes),
        strides=tuple(strides),
        rings=tuple(rings),
        shared=per_chip / min(cores, per_chip),
    )


@lru_cache(maxsize=4096)
def _busiest_link(
    ends: tuple[tuple[Place, Place], ...], shape: tuple[int, ...], wrap: tuple[bool, ...]
) -> int:
    """Arrays that cross the busiest link, each going along x, then y, then z, the shorter way."""
    loads: Counter[tuple[Place, int, int]] = Counter()
    for sender, receiver in ends:
        at = list(sender)
        for axis, size in enumerate(shape):
            distance = receiver[axis] - at[axis]
            if wrap[axis] and abs(distance) * 2 > size:
                distance -= int(math.copysign(size, distance))
            step = 1 if distance > 0 else -1
            for _ in range(abs(distance)):
                loads[tuple(at), axis, step] += 1
                at[axis] = (at[axis] + step) % size
    return max(loads.values(), default=1)
