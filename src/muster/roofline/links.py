"""Which bandwidth the traffic of each kind of parallelism gets on a cluster.

    torus    tensor parallelism has one axis (the book's M_Y = 1), FSDP the others (M_X = M - 1);
             FSDP alone has all of them
    GPUs     tensor parallelism stays inside the NVLink domain; FSDP leaves it where the slice is
             larger, and every GPU of the domain sends its share of the gather

Source: the book's Part 5, "How to Parallelize a Transformer for Training", and Part 12, "How to
Think About GPUs". An axis that does not wrap around is a line, not a ring: its ends receive from
one side only, so it counts half.

Legend: M axes of the torus, W bytes/s of one chip along one axis, Y tensor-parallel ways.
"""

from dataclasses import dataclass

from muster.hardware import Cluster, Loopback, Slice, Switched, Torus

LINE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Links:
    """Bytes/s that one chip sends for each kind of traffic.

    Attributes:
        fsdp: weights gathered and gradients scattered inside a slice.
        tensor: activations between tensor-parallel chips.
        dcn: gradients between slices; None for one slice.
    """

    fsdp: float
    tensor: float
    dcn: float | None


def links_of(cluster: Cluster, *, tensor: int) -> Links:
    """The bandwidths of a layout with `tensor`-way tensor parallelism.

    On one v5p pod FSDP has two axes of 180 GB/s beside tensor parallelism's one, and three alone.
    """
    slice_ = cluster.slice
    match slice_.chip.network:
        case Torus() as torus:
            fsdp, tensor_link = _torus(slice_, torus, tensor)
            dcn = torus.dcn_bandwidth_per_chip
        case Switched() as switched:
            fsdp, tensor_link = _switched(slice_, switched, tensor)
            dcn = switched.scale_out_bandwidth
        case Loopback() as loopback:
            fsdp = tensor_link = dcn = loopback.bandwidth
    return Links(fsdp=fsdp, tensor=tensor_link, dcn=dcn if cluster.slices > 1 else None)


def torus_axes(slice_: Slice) -> list[float]:
    """The slice's axes longer than one chip, each as its share of a ring's bandwidth."""
    return sorted(
        (1.0 if wraps else LINE_SHARE)
        for size, wraps in zip(slice_.shape, slice_.wrap, strict=True)
        if size > 1
    )


def _torus(slice_: Slice, torus: Torus, tensor: int) -> tuple[float, float]:
    axes = torus_axes(slice_) or [1.0]
    one_axis, others = axes[0], axes[1:] or axes
    fsdp = sum(axes if tensor == 1 else others)
    return fsdp * torus.axis_bidi_bandwidth, one_axis * torus.axis_bidi_bandwidth


def _switched(slice_: Slice, network: Switched, tensor: int) -> tuple[float, float]:
    if slice_.chips <= network.domain_chips:
        return network.scale_up_bandwidth, network.scale_up_bandwidth
    # Each GPU brings in 1/(domain / Y) of what its domain needs and passes it on over NVLink.
    peers = max(1.0, network.domain_chips / tensor)
    fsdp = min(network.scale_up_bandwidth, network.scale_out_bandwidth * peers)
    return fsdp, network.scale_up_bandwidth
