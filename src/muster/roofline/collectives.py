"""Time of one collective on one network.

    AllGather, ReduceScatter    V / W * (n - 1) / n
    AllReduce                   twice that
    AllToAll                    V / (4 W) on a ring, V / (n W) * (n - 1) / n behind a switch

each at least its latency: hops * time of one hop. Sources: the book's Part 3, "A Deeper Dive into
TPU Communication Primitives" and its latency note under "AllGather"; Part 12, "Intra-node
collectives". On a ring that closes, both directions carry half of the data and n/2 hops reach
everyone; on a line, an end must hear from the other over n - 1 hops through one direction.

Legend: V bytes of the whole array (of one ring), n ways (chips of the axis), W bytes/s.
"""

import math
from dataclasses import dataclass

HOP_SECONDS = 1e-6


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """What a collective takes: the larger of the two."""

    bandwidth_seconds: float
    latency_seconds: float

    @property
    def seconds(self) -> float:
        """Time of the whole collective."""
        return max(self.bandwidth_seconds, self.latency_seconds)

    @property
    def bound(self) -> str:
        """Which of the two it is: `bandwidth` or `latency`."""
        return "latency" if self.latency_seconds > self.bandwidth_seconds else "bandwidth"


def all_gather_time(
    V: float,
    *,
    axes: tuple[int, ...],
    W: float,
    closed: bool = True,
    hop_seconds: float = HOP_SECONDS,
) -> CollectiveTime:
    """AllGather over a torus: the array has V bytes once it is gathered.

    Args:
        V: bytes of the gathered array on one chip.
        axes: lengths of the torus axes that carry it at once.
        W: bytes/s of one axis, both directions together.
        closed: whether each axis is a ring; a line has half of the bandwidth.
        hop_seconds: latency of one hop.

    The book's Part 3, Pop Quiz 2: bf16[2048, 8192] over a v5e axis of 4, which is a line.

    >>> time = all_gather_time(2 * 2048 * 8192, axes=(4,), W=9e10, closed=False)
    >>> f"{time.seconds:.3g}", time.bound
    ('0.000559', 'bandwidth')
    >>> all_gather_time(2 * 256 * 256, axes=(4,), W=9e10, closed=False).bound
    'latency'
    """
    lengths = [length for length in axes if length > 1]
    if not lengths:
        return CollectiveTime(bandwidth_seconds=0.0, latency_seconds=0.0)
    bandwidth = len(lengths) * (W if closed else W / 2)
    return CollectiveTime(
        bandwidth_seconds=V * _others(math.prod(lengths)) / bandwidth,
        latency_seconds=hop_seconds * sum(n / 2 if closed else n - 1 for n in lengths),
    )


def reduce_scatter_time(
    V: float,
    *,
    axes: tuple[int, ...],
    W: float,
    closed: bool = True,
    hop_seconds: float = HOP_SECONDS,
) -> CollectiveTime:
    """ReduceScatter of an array of V bytes: an AllGather that runs backwards."""
    return all_gather_time(V, axes=axes, W=W, closed=closed, hop_seconds=hop_seconds)


def all_reduce_time(
    V: float,
    *,
    axes: tuple[int, ...],
    W: float,
    closed: bool = True,
    hop_seconds: float = HOP_SECONDS,
) -> CollectiveTime:
    """AllReduce of an array of V bytes: a ReduceScatter, then an AllGather.

    >>> f"{all_reduce_time(2 * 8192 * 28672, axes=(16,), W=1.8e11).seconds:.3g}"
    '0.00489'
    """
    once = all_gather_time(V, axes=axes, W=W, closed=closed, hop_seconds=hop_seconds)
    return CollectiveTime(
        bandwidth_seconds=2 * once.bandwidth_seconds, latency_seconds=2 * once.latency_seconds
    )


def all_to_all_time(
    V: float, *, ways: int, W: float, closed: bool = True, hop_seconds: float = HOP_SECONDS
) -> CollectiveTime:
    """AllToAll over one axis of a torus.

    Args:
        V: bytes of the whole array, over all chips of the axis.
        ways: chips of the axis.
        W: bytes/s of the axis, both directions together.
        closed: whether the axis is a ring. On a ring of n each link carries V / 8 one way, W / 2,
            hence V / (4 W) (book, Part 3); the middle link of a line carries V / 4 each way, twice
            as much.
        hop_seconds: latency of one hop.

    >>> f"{all_to_all_time(1e9, ways=16, W=1.8e11).seconds * 1.8e11 / 1e9:.3g}"
    '0.25'
    """
    if ways == 1:
        return CollectiveTime(bandwidth_seconds=0.0, latency_seconds=0.0)
    return CollectiveTime(
        bandwidth_seconds=V / (4 * W) if closed else V / (2 * W),
        latency_seconds=hop_seconds * (ways / 2 if closed else ways - 1),
    )


def switch_all_gather_time(
    V: float, *, ways: int, egress: float, hop_seconds: float = HOP_SECONDS
) -> CollectiveTime:
    """AllGather (or ReduceScatter) inside a switched domain, or among nodes of a fat tree.

    Args:
        V: bytes of the gathered array.
        ways: GPUs of the domain, or nodes.
        egress: bytes/s out of one GPU (one direction), or out of one node.
        hop_seconds: latency of one step of the ring.

    The book's Part 12, Pop Quiz 1: bf16[1024, 16384] in a node of 8 H100 takes 65 us.

    >>> f"{switch_all_gather_time(2 * 1024 * 16384, ways=8, egress=450e9).seconds:.2g}"
    '6.5e-05'
    """
    return CollectiveTime(
        bandwidth_seconds=V * _others(ways) / egress, latency_seconds=hop_seconds * (ways - 1)
    )


def switch_all_to_all_time(
    V: float, *, ways: int, egress: float, hop_seconds: float = HOP_SECONDS
) -> CollectiveTime:
    """AllToAll inside a switched domain: V (n - 1) / (n^2 W); V is over all GPUs together."""
    return CollectiveTime(
        bandwidth_seconds=V * _others(ways) / (ways * egress),
        latency_seconds=hop_seconds if ways > 1 else 0.0,
    )


def _others(ways: int) -> float:
    """The share of an array that lies elsewhere."""
    return (ways - 1) / ways
