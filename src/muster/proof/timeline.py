"""One step of a compiled program on one device, operation by operation, before it has ever run.

The main core runs the operations of the schedule one after the other. What each takes:

    fusions                the compiler's estimated cycles over the chip's clock; one with a matmul
                           no more than its FLOPs over 0.95 of the peak, or its bytes over HBM's
    copies                 the same; no more than its bytes over 0.55 of HBM's bandwidth
    Pallas kernels         attention by its matmuls and its softmax (`kernels`), others from FLOPs
                           over the share of the peak that a matmul was fitted to reach; no less
                           than their bytes over HBM's bandwidth
    collectives            `network`: bytes, devices, strategy, links
    copies between         bytes over HBM's bandwidth, one after the other, beside what computes;
    memories               over PCIe where one end is the host's memory
    no estimate            its result read and written once at HBM's bandwidth

What is asynchronous runs from its start on tracks of its own (a set of links, a copy engine, the
sparse core), each of which does one thing at a time; the main core waits where the result is due. A
loop is timed once and counted as often as it runs.

So these are estimates, and of three kinds: the compiler's, the shapes' and the links'. The bounds
on the compiler's are from the loops that it schedules later, which take less than what it guessed
when it chose their windows (`durations`). What is not in them: launch gaps, stragglers, links
shared by different mesh axes at once, HBM shared by copies and computation beyond what the
compiler's cycles hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.proof.costs import COLLECTIVE, Cost, Span
from muster.proof.hlo.collectives import mesh_for
from muster.proof.hlo.program import Program
from muster.proof.network import interconnect
from muster.proof.simulate import Watch, rates_of


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One step.

    Attributes:
        seconds: of the step.
        costs: of every operation, in the order of the schedule.
        spans: what runs when, loops unrolled a few times.
        notes: what had to be guessed, one line each.
    """

    seconds: float
    costs: tuple[Cost, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...]

    def of_kind(self, *kinds: str) -> float:
        """Seconds of the main core that operations of these kinds take or make it wait."""
        return sum(cost.exposed for cost in self.costs if cost.kind in kinds)

    @property
    def exposed_communication(self) -> float:
        """Seconds that the main core waits for collectives."""
        return self.of_kind(COLLECTIVE)

    @property
    def communication(self) -> float:
        """Seconds that collectives take, hidden or not."""
        return sum(cost.seconds for cost in self.costs if cost.kind == COLLECTIVE)

    def mfu(self, flops_per_device: float, peak_flops: float) -> float:
        """The model's FLOPs of one device and step over what its peak allows in that time."""
        return flops_per_device / (self.seconds * peak_flops)

    def costliest(self, most: int = 10) -> list[Cost]:
        """The operations that take most of the main core's time, merged by the model's names."""
        table: dict[tuple[str, str], Cost] = {}
        for cost in self.costs:
            key = (cost.kind, cost.label)
            before = table.get(key)
            table[key] = (
                replace(cost, collective=None)
                if before is None
                else replace(
                    before,
                    count=before.count + cost.count,
                    seconds=before.seconds + cost.seconds,
                    exposed=before.exposed + cost.exposed,
                )
            )
        return sorted(table.values(), key=lambda cost: -cost.exposed)[:most]


def time_program(
    program: Program,
    cluster: Cluster,
    *,
    mesh: Mapping[str, int] | None = None,
    coordinates: Iterable[tuple[int, ...]] = (),
) -> Timeline:
    """Time one step of a program.

    Args:
        program: scheduled for one device.
        cluster: the chips that it runs on.
        mesh: ways of every axis, outermost first; None for what the program names.
        coordinates: x, y, z, core and slice of every device, in the mesh's order.

    Raises:
        BadInput: the program has no schedule, or the chips are no TPUs.
    """
    if not program.scheduled:
        raise BadInput(
            f"{program.name} is not scheduled (no is_scheduled=true in its first line): give the "
            "text that the compiler wrote after all of its passes"
        )
    links = interconnect(cluster, tuple(coordinates))
    watch = Watch(program, rates_of(cluster.chip), links, mesh_for(program, mesh))
    part = watch.run(program.main)
    return Timeline(
        seconds=part.seconds,
        costs=tuple(part.costs.values()),
        spans=tuple(part.spans),
        notes=tuple(watch.notes),
    )
