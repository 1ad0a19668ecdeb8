"""Which links a group of chips talks over, and how fast: NVLink domains, rails, torus axes, DCN.

Axes of a layout are laid out innermost first: tensor, sequence, expert, fsdp, data, stage, slice.

GPUs. A group of n, k of them in one scale-up domain, gathers V bytes in

    max(V (k - 1) / k / W_up,  V (q - 1) / q / (k W_out)),  q = n / k domains,

as every GPU brings in its share over its own rail and passes it on inside the domain. Source: the
book's Part 12, "Beyond the node level".

Torus. A group takes whole axes where its size is theirs, else a part of one. A whole axis that
wraps around gives W, a line half of it; a part is a line; what is left of a divided axis has hops
that cross the parts between, which as many groups share: W over the stride. The bandwidths of
several axes add up.
Source: the book's Part 3, "A Deeper Dive into TPU Communication Primitives".

Legend: W bytes/s of one chip, V bytes of the gathered array.
"""

from dataclasses import dataclass

from muster.hardware import Cluster, Loopback, Switched, Torus
from muster.roofline.efficiency import Efficiency, efficiency
from muster.sharding.mesh import Layout


@dataclass(frozen=True, slots=True)
class Group:
    """A group of chips that run collectives.

    Attributes:
        ways: chips.
        seconds_per_byte: of an AllGather, for each byte of the gathered array.
        to_all_per_byte: of an AllToAll, for each byte that one chip holds.
        latency_seconds: of one AllGather.
        axes: of a torus, the physical axes taken: `x` a whole one, `x:4` four chips along it.
    """

    ways: int
    seconds_per_byte: float
    to_all_per_byte: float
    latency_seconds: float
    axes: tuple[str, ...] = ()

    def all_gather(self, V: float) -> float:
        """AllGather, or ReduceScatter, of an array of V bytes; an AllReduce is two."""
        return V * self.seconds_per_byte + self.latency_seconds if V else 0.0

    def all_to_all(self, V: float) -> float:
        """AllToAll of V bytes a chip."""
        return V * self.to_all_per_byte + self.latency_seconds if V else 0.0


ALONE = Group(1, 0.0, 0.0, 0.0)


def gpu_group(network: Switched, fitted: Efficiency, *, inner: int, ways: int) -> Group:
    """A group of `ways` GPUs, `inner` apart in rank order."""
    if ways == 1:
        return ALONE
    domain = network.domain_chips
    near = max(1, min(ways, domain // inner)) if inner < domain else 1
    while ways % near:
        near -= 1
    domains = ways // near
    up, out = network.scale_up_bandwidth * fitted.near, network.scale_out_bandwidth * fitted.far
    inside = (near - 1) / near / up
    between = (domains - 1) / domains / (near * out)
    # Of what one chip sends to all, the share for other domains leaves by its own rail.
    away = (domains - 1) / domains
    to_all = max((near - 1) / near * (1 - away) / up, away / out)
    hops = (near - 1) + (domains - 1)
    return Group(ways, max(inside, between), to_all, fitted.hop_seconds * min(hops, 64))


@dataclass(slots=True)
class _Axis:
    name: str
    length: int
    wraps: bool
    stride: int = 1

    def taken(self, ways: int) -> str:
        """How to call `ways` chips along it."""
        return self.name if ways == self.length * self.stride else f"{self.name}:{ways}"


AXIS_NAMES = "xyz"


def torus_groups(
    cluster: Cluster, torus: Torus, fitted: Efficiency, sizes: tuple[int, ...]
) -> tuple[Group, ...]:
    """Groups of these sizes, innermost first, on one slice."""
    slice_ = cluster.slice
    axes = [
        _Axis(name, length, wraps)
        for name, length, wraps in zip(AXIS_NAMES, slice_.shape, slice_.wrap, strict=False)
        if length > 1
    ]
    W = torus.axis_bidi_bandwidth * fitted.near
    return tuple(_torus_group(axes, size, W, fitted.hop_seconds) for size in sizes)


def physical_axes(cluster: Cluster, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Which physical axes each mesh axis takes on a torus: `x` a whole one, `x:4` part of one.

    Mesh axes of one way take none; where there is no torus, nor does any.
    """
    network = cluster.chip.network
    if not isinstance(network, Torus):
        return {}
    names = ("tensor", "sequence", "expert", "fsdp", "data")
    sizes = tuple(getattr(layout, name) for name in names)
    groups = torus_groups(cluster, network, efficiency(cluster.chip.id, "xla"), sizes)
    return {name: group.axes for name, group in zip(names, groups, strict=True) if group.ways > 1}


def _torus_group(axes: list[_Axis], ways: int, W: float, hop: float) -> Group:
    if ways == 1:
        return ALONE
    left, share, hops, longest = ways, 0.0, 0.0, 1.0
    taken: list[str] = []
    for axis in sorted(axes, key=lambda a: (a.length != ways, -a.length)):
        if axis.length > 1 and left % axis.length == 0:
            share += (1.0 if axis.wraps else 0.5) / axis.stride
            hops += axis.length / 2 if axis.wraps else axis.length - 1
            longest = max(longest, axis.length * axis.stride * (1.0 if axis.wraps else 2.0))
            taken.append(axis.taken(axis.length))
            left //= axis.length
            axis.length = 1
    if left > 1:
        for axis in sorted(axes, key=lambda a: a.length):
            if axis.length % left == 0 and axis.length > 1:
                share += 0.5 / axis.stride
                hops += left - 1
                longest = max(longest, 2.0 * left * axis.stride)
                taken.append(axis.taken(left))
                axis.length //= left
                axis.stride *= left
                left = 1
                break
    per_byte = (ways - 1) / ways / (W * (share or 0.5))  # half: a line through unused chips
    # The bisection of the longest ring carries an AllToAll: V / (4 W) of the array over the ring.
    return Group(ways, per_byte, longest / 4 / W, hop * (hops or ways - 1), tuple(taken))


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a layout, and what it costs to send to the next stage."""

    tensor: Group
    sequence: Group
    expert: Group
    fsdp: Group
    weights: Group
    data: Group
    next_stage_per_byte: float
    dcn_per_byte: float


type Sizes = tuple[int, int, int, int, int, int]


def groups_of(
    cluster: Cluster, fitted: Efficiency, *, sizes: Sizes, shards_replicas: bool
) -> Groups:
    """Groups of a layout inside one slice.

    Args:
        cluster: the chips.
        fitted: shares of the bandwidths that are reached.
        sizes: tensor, sequence, expert, fsdp, data and stage ways.
        shards_replicas: whether the sequence and expert ways shard the dense weights too; else they
            replicate them, as the data ways do.
    """
    network = cluster.chip.network
    if isinstance(network, Switched):
        return _on_switches(network, fitted, sizes, shards_replicas=shards_replicas)
    if isinstance(network, Torus):
        each = torus_groups(cluster, network, fitted, sizes[:5])
        next_stage = 2 / (network.axis_bidi_bandwidth * fitted.point)
        dcn = 1 / (network.dcn_bandwidth_per_chip * fitted.far)
    else:
        each = tuple(_shared(network, ways) for ways in sizes[:5])
        next_stage = dcn = 1 / network.bandwidth
    tensor, sequence, expert, fsdp, data = each
    whole = (sequence, expert, fsdp) if shards_replicas else (fsdp,)
    replicas = (data,) if shards_replicas else (sequence, expert, data)
    return Groups(
        tensor=tensor,
        sequence=sequence,
        expert=expert,
        fsdp=fsdp,
        weights=_joined(*whole),
        data=_joined(*replicas),
        next_stage_per_byte=next_stage,
        dcn_per_byte=dcn,
    )


def _on_switches(
    network: Switched, fitted: Efficiency, sizes: Sizes, *, shards_replicas: bool
) -> Groups:
    tensor, sequence, expert, fsdp, data, stage = sizes
    model = tensor * sequence * expert
    out = network.scale_out_bandwidth
    inside = model * fsdp * data * stage <= network.domain_chips
    next_stage = network.scale_up_bandwidth if inside else out

    def group(inner: int, ways: int) -> Group:
        return gpu_group(network, fitted, inner=inner, ways=ways)

    shards = group(model, fsdp)
    return Groups(
        tensor=group(1, tensor),
        sequence=group(tensor, sequence),
        expert=group(tensor * sequence, expert),
        fsdp=shards,
        weights=group(tensor, sequence * expert * fsdp) if shards_replicas else shards,
        data=group(model * fsdp, data)
        if shards_replicas or fsdp > 1
        else group(tensor, sequence * expert * data),
        next_stage_per_byte=1 / (next_stage * fitted.point),
        dcn_per_byte=1 / (out * fitted.far),
    )


def _shared(network: Loopback, ways: int) -> Group:
    """Devices of one machine that share its memory."""
    if ways == 1:
        return ALONE
    return Group(ways, (ways - 1) / ways / network.bandwidth, 1 / network.bandwidth, 0.0)


def _joined(*groups: Group) -> Group:
    """A group over several axes: their bandwidths add up."""
    several = [group for group in groups if group.ways > 1]
    if not several:
        return ALONE
    if len(several) == 1:
        return several[0]
    ways = 1
    rate = 0.0
    for group in several:
        ways *= group.ways
        rate += (group.ways - 1) / group.ways / group.seconds_per_byte
    return Group(
        ways,
        (ways - 1) / ways / rate,
        max(group.to_all_per_byte for group in several),
        sum(group.latency_seconds for group in several),
    )
