"""The closed-form choice of a layout.

The book's optimum is a real number (X_opt FSDP ways, n / X_opt tensor ways). What divides the
batch, the sequence, the heads and the chips is a small set of whole numbers, so all of them are
listed and the one is taken whose slowest term (math, FSDP traffic, tensor traffic, traffic between
slices) is least: the optimum rounded to what divides, and never to anything else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from muster.hardware import Cluster, Switched
from muster.models.architecture import Architecture
from muster.planner.constraints import SHORTEST_PIECE, divisors, legal_tensor_ways
from muster.roofline.communication import Widths, average_widths, layer_times, layer_widths
from muster.roofline.links import links_of
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with the closed-form times of one layer's forward pass, in seconds."""

    layout: Layout
    math: float
    fsdp: float
    tensor: float
    dcn: float

    @property
    def communication(self) -> float:
        """The slowest kind of traffic; kinds overlap with each other and with the math."""
        return max(self.fsdp, self.tensor, self.dcn)

    @property
    def seconds(self) -> float:
        """The slowest of all."""
        return max(self.math, self.communication)

    @property
    def compute_bound(self) -> bool:
        """Whether the math hides all communication."""
        return self.math >= self.communication

    @property
    def slowest(self) -> str:
        """The name of the slowest term."""
        terms = {"math": self.math, "fsdp": self.fsdp, "tensor": self.tensor, "dcn": self.dcn}
        return max(terms, key=terms.__getitem__)


def candidates(architecture: Architecture, cluster: Cluster, workload: Workload) -> list[Candidate]:
    """Layouts that divide, best first: by the slowest term, then by the sum of traffic.

    Of layouts with the same weight shards and tensor ways the one that cuts sequences least stands
    for all.
    """
    widths = average_widths(architecture, layer_widths)
    judged = [
        _judge(architecture, cluster, workload, widths, layout)
        for layout in legal_layouts(architecture, cluster, workload)
    ]
    least_cut: dict[tuple[int, int], Candidate] = {}
    for candidate in sorted(judged, key=_preference):
        layout = candidate.layout
        least_cut.setdefault((layout.weight_shards, layout.tensor), candidate)
    return list(least_cut.values())


def _preference(candidate: Candidate) -> tuple[float, float, int, int]:
    traffic = candidate.fsdp + candidate.tensor + candidate.dcn
    layout = candidate.layout
    return (candidate.seconds, traffic, layout.sequence, layout.microbatches)


def legal_layouts(
    architecture: Architecture, cluster: Cluster, workload: Workload
) -> Iterator[Layout]:
    """Layouts whose ways divide the batch, the sequence and the model, on up to all the chips."""
    chips = cluster.slice.chips
    network = cluster.chip.network
    most = network.domain_chips if isinstance(network, Switched) else chips
    if workload.batch_sequences % cluster.slices:
        return
    per_slice = workload.batch_sequences // cluster.slices
    tensor_ways = legal_tensor_ways(architecture, min(most, chips))
    pieces = [s for s in divisors(workload.sequence_length) if _long_enough(workload, s)]
    for fsdp in divisors(per_slice):
        for sequence in pieces:
            for tensor in tensor_ways:
                if fsdp * sequence * tensor <= chips:
                    yield Layout(slice=cluster.slices, fsdp=fsdp, sequence=sequence, tensor=tensor)


def _long_enough(workload: Workload, pieces: int) -> bool:
    return pieces == 1 or workload.sequence_length // pieces >= SHORTEST_PIECE


def _judge(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    widths: Widths,
    layout: Layout,
) -> Candidate:
    links = links_of(cluster, tensor=layout.tensor)
    chip = cluster.chip
    times = layer_times(
        B=workload.batch_tokens / cluster.slices,
        D=architecture.d_model,
        widths=widths,
        X=layout.weight_shards,
        Y=layout.tensor,
        C=chip.bf16_flops,
        W=links.tensor,
        M_X=links.fsdp / links.tensor,
        M_Y=1,
    )
    return Candidate(
        layout=layout,
        math=times.math,
        fsdp=times.fsdp,
        tensor=times.tensor,
        dcn=_dcn_time(architecture, widths, layout, links.dcn),
    )


def _dcn_time(
    architecture: Architecture, widths: Widths, layout: Layout, bandwidth: float | None
) -> float:
    """Gradients between slices, as seconds beside one layer's *forward* math.

    The book (Part 5, "Scaling Across Pods") compares the AllReduce, 8 D F / (chips W), with the
    backward pass, twice the forward one; half of it therefore stands beside the forward pass.
    """
    if bandwidth is None or layout.slice == 1:
        return 0.0
    return 4 * architecture.d_model * widths.stored / (layout.chips_per_slice * bandwidth)
