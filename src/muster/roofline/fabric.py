"""Which links a group of chips talks over, and how fast: NVLink domains, rails, torus axes, DCN.

Axes of a layout are laid out innermost first: tensor; then all ways that shard the weights as one
block, in it sequence, expert, fsdp; then data, stage, slice. So weights and gradients travel over
the same links however the ways of the block are called.

GPUs. A group of n, k of them in one scale-up domain, gathers V bytes in

    max(V (k - 1) / k / W_up,  V (q - 1) / q / (k W_out)),  q = n / k domains,

as every GPU brings in its share over its own rail and passes it on inside the domain. Source: the
book's Part 12, "Beyond the node level".

Torus. A group takes axes or parts of them by the rule of `sharding.torus`. A whole axis that
wraps around gives W, a line half of it; a part is a line; what is left of a divided axis has hops
that cross the parts between, which as many groups share: W over the stride. The bandwidths of
several axes add up.
Source: the book's Part 3, "A Deeper Dive into TPU Communication Primitives".

Legend: W bytes/s of one chip, V bytes of the gathered array.
"""

import math
from dataclasses import dataclass, replace

from muster.hardware import Cluster, Loopback, Switched, Torus
from muster.roofline.efficiency import Efficiency
from muster.sharding.mesh import Layout
from muster.sharding.torus import Free, free_axes, placement, take


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
    return _gpu_group(network, fitted, (inner, ways))


def _gpu_group(network: Switched, fitted: Efficiency, *parts: tuple[int, int]) -> Group:
    """A group of several parts, each some ways that lie so far apart in rank order."""
    ways = math.prod(each for _, each in parts)
    if ways == 1:
        return ALONE
    near = math.prod(_inside(network.domain_chips, *part) for part in parts)
    domains = ways // near
    up, out = network.scale_up_bandwidth * fitted.near, network.scale_out_bandwidth * fitted.far
    inside = (near - 1) / near / up
    between = (domains - 1) / domains / (near * out)
    # Of what one chip sends to all, the share for other domains leaves by its own rail.
    away = (domains - 1) / domains
    to_all = max((near - 1) / near * (1 - away) / up, away / out)
    hops = (near - 1) + (domains - 1)
    return Group(ways, max(inside, between), to_all, fitted.hop_seconds * min(hops, 64))


def _inside(domain: int, inner: int, ways: int) -> int:
    """How many of some ways, `inner` apart, one domain holds: a divisor of them."""
    near = max(1, min(ways, domain // inner)) if inner < domain else 1
    while ways % near:
        near -= 1
    return near


def torus_groups(
    cluster: Cluster, torus: Torus, fitted: Efficiency, sizes: tuple[int, ...]
) -> tuple[Group, ...]:
    """Groups of these sizes, innermost first, on one slice."""
    axes, wrap = free_axes(cluster.slice.shape), cluster.slice.wrap
    W = torus.axis_bidi_bandwidth * fitted.near
    return tuple(_take(axes, size, wrap, W, fitted.hop_seconds) for size in sizes)


def physical_axes(cluster: Cluster, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Which physical axes each mesh axis takes on a torus: `x` a whole one, `x:4` part of one.

    Mesh axes of one way take none; where there is no torus, nor does any.
    """
    if not isinstance(cluster.chip.network, Torus):
        return {}
    found = placement(cluster.slice.shape, layout)
    return {name: tuple(map(str, pieces)) for name, pieces in found.items() if pieces}


def _take(axes: list[Free], ways: int, wrap: tuple[bool, ...], W: float, hop: float) -> Group:
    """Take a group's chips off the axes, and what their links give it."""
    if ways == 1:
        return ALONE
    share, hops, longest = 0.0, 0.0, 1.0
    pieces = take(axes, ways)
    for piece in pieces:
        ring = piece.closes and wrap[piece.axis]
        share += (1.0 if ring else 0.5) / piece.stride
        hops += piece.ways / 2 if ring else piece.ways - 1
        longest = max(longest, piece.ways * piece.stride * (1.0 if ring else 2.0))
    per_byte = (ways - 1) / ways / (W * (share or 0.5))  # half: a line through unused chips
    # The bisection of the longest ring carries an AllToAll: V / (4 W) of the array over the ring.
    names = tuple(map(str, pieces))
    return Group(ways, per_byte, longest / 4 / W, hop * (hops or ways - 1), names)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a layout, and what it costs to send to the next stage.

    Attributes:
        tensor: activations of tensor parallelism.
        sequence: keys and values.
        expert: tokens to their experts.
        fsdp: the fsdp ways alone.
        weights: what shards the weights that every token meets.
        routed: what shards the weights of routed experts, beside the expert ways.
        data: what sums the gradients of the former.
        routed_data: what sums the gradients of the latter.
        next_stage_per_byte: seconds to the next pipeline stage.
        dcn_per_byte: seconds to another slice.
    """

    tensor: Group
    sequence: Group
    expert: Group
    fsdp: Group
    weights: Group
    routed: Group
    data: Group
    routed_data: Group
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
        shards_replicas: whether the sequence and expert ways shard the weights too; else they
            replicate them, as the data ways do, but for the experts that expert ways deal out.
    """
    network = cluster.chip.network
    if isinstance(network, Switched):
        return _on_switches(network, fitted, sizes, shards_replicas=shards_replicas)
    if isinstance(network, Torus):
        found = _on_torus(cluster, network, fitted, sizes)
    else:
        found = _in_one_machine(network, sizes)
    if shards_replicas:
        return found
    return replace(
        found,
        weights=found.fsdp,
        routed=found.fsdp,
        data=_joined(found.sequence, found.expert, found.data),
        routed_data=_joined(found.sequence, found.data),
    )


def _on_torus(cluster: Cluster, torus: Torus, fitted: Efficiency, sizes: Sizes) -> Groups:
    """Tensor ways, the block that shards weights, replicas; and the groups inside the block.

    Those are placed one after the other, so that fsdp ways change nothing for those before them.
    """
    tensor, sequence, expert, fsdp, data, _ = sizes
    axes, wrap = free_axes(cluster.slice.shape), cluster.slice.wrap
    W, hop = torus.axis_bidi_bandwidth * fitted.near, fitted.hop_seconds
    tensor_group = _take(axes, tensor, wrap, W, hop)
    inside = [replace(axis) for axis in axes]
    sequence_group, expert_group, fsdp_group = (
        _take(inside, ways, wrap, W, hop) for ways in (sequence, expert, fsdp)
    )
    weights = _take(axes, sequence * expert * fsdp, wrap, W, hop)
    data_group = _take(axes, data, wrap, W, hop)
    return Groups(
        tensor=tensor_group,
        sequence=sequence_group,
        expert=expert_group,
        fsdp=fsdp_group,
        weights=weights,
        routed=weights if expert == 1 else _joined(sequence_group, fsdp_group),
        data=data_group,
        routed_data=data_group,
        next_stage_per_byte=2 / (torus.axis_bidi_bandwidth * fitted.point),
        dcn_per_byte=1 / (torus.dcn_bandwidth_per_chip * fitted.far),
    )


def _on_switches(
    network: Switched, fitted: Efficiency, sizes: Sizes, *, shards_replicas: bool
) -> Groups:
    tensor, sequence, expert, fsdp, data, stage = sizes
    model = tensor * sequence * expert
    out = network.scale_out_bandwidth
    inside = model * fsdp * data * stage <= network.domain_chips
    next_stage = network.scale_up_bandwidth if inside else out

    def group(*parts: tuple[int, int]) -> Group:
        return _gpu_group(network, fitted, *parts)

    shards, replica_ranks = group((model, fsdp)), (model * fsdp, data)
    if shards_replicas:
        weights = group((tensor, sequence * expert * fsdp))
        routed = group((tensor, sequence), (model, fsdp))
        dense_replicas = routed_replicas = group(replica_ranks)
    else:
        weights = routed = shards
        dense_replicas = group((tensor, sequence * expert), replica_ranks)
        routed_replicas = group((tensor, sequence), replica_ranks)
    return Groups(
        tensor=group((1, tensor)),
        sequence=group((tensor, sequence)),
        expert=group((tensor * sequence, expert)),
        fsdp=shards,
        weights=weights,
        routed=routed,
        data=dense_replicas,
        routed_data=routed_replicas,
        next_stage_per_byte=1 / (next_stage * fitted.point),
        dcn_per_byte=1 / (out * fitted.far),
    )


def _in_one_machine(network: Loopback, sizes: Sizes) -> Groups:
    tensor, sequence, expert, fsdp, data, _ = (_shared(network, ways) for ways in sizes)
    return Groups(
        tensor=tensor,
        sequence=sequence,
        expert=expert,
        fsdp=fsdp,
        weights=_shared(network, sequence.ways * expert.ways * fsdp.ways),
        routed=_shared(network, sequence.ways * fsdp.ways),
        data=data,
        routed_data=data,
        next_stage_per_byte=1 / network.bandwidth,
        dcn_per_byte=1 / network.bandwidth,
    )


def _shared(network: Loopback, ways: int) -> Group:
    """Devices of one machine that share its memory."""
    if ways == 1:
        return ALONE
    return Group(ways, (ways - 1) / ways / network.bandwidth, 1 / network.bandwidth, 0.0)


def _joined(*groups: Group) -> Group:
    """A group over several others: their bandwidths add up."""
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
