"""What any scheduled TPU program tells of itself: work, collectives, timeline, findings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.hardware import Cluster
from muster.planner.plan_file import PlannedRun
from muster.proof.durations import INT8
from muster.proof.findings import Finding, Room, findings_of, refused_options, seen
from muster.proof.hlo import Collective, Cycles, Program, collectives, compute_cycles, walk
from muster.proof.hlo.collectives import mesh_for
from muster.proof.hlo.flops import factors_of, matmul_flops
from muster.proof.hlo.kinds import is_pallas
from muster.proof.kernels import work_of
from muster.proof.network import Place, interconnect
from muster.proof.simulate import rates_of
from muster.proof.timeline import Timeline, time_program


@dataclass(frozen=True, kw_only=True)
class CollectiveVerdict:
    """One kind of collective between the same chips: what it sends and how long it takes."""

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes_per_chip: float
    strategy: str
    asynchronous: bool
    seconds: float
    exposed_seconds: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One step of a program on one device.

    Attributes:
        compute_seconds: the compiler's cycles at the chip's clock, and kernels by their shapes;
            the timeline has less where the schedule shows that an estimate was too high.
        flops: of matmuls and kernels, loops multiplied out.
        findings: the costliest first.
        notes: what was guessed or not understood, one line each.
    """

    program: Program
    timeline: Timeline
    cycles: Cycles
    compute_seconds: float
    flops: float
    collectives: tuple[CollectiveVerdict, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The answer of `muster inspect --json`."""
        timeline = self.timeline
        return {
            "muster": 1,
            "program": self.program.name,
            "devices": self.program.devices,
            "flops_per_step_per_chip": {"compiled": self.flops},
            "compute_cycles": self.cycles.compute,
            "compute_seconds": self.compute_seconds,
            "step_seconds": timeline.seconds,
            "exposed_communication_seconds": timeline.exposed_communication,
            "collectives": [asdict(each) for each in self.collectives],
            "costliest": costliest_json(timeline),
            "findings": [asdict(each) for each in self.findings],
            "notes": list(self.notes),
        }


def costliest_json(timeline: Timeline) -> list[dict[str, Any]]:
    """The ten operations that take most of the core's time."""
    return [
        {
            "label": cost.label,
            "kind": cost.kind,
            "count": cost.count,
            "seconds": cost.seconds,
            "exposed_seconds": cost.exposed,
        }
        for cost in timeline.costliest()
    ]


def read_program(
    program: Program,
    cluster: Cluster,
    *,
    mesh: Mapping[str, int] | None = None,
    coordinates: tuple[Place, ...] = (),
    planned: PlannedRun | None = None,
    memory: Room | None = None,
    refused: Iterable[str] = (),
) -> Reading:
    """Read one step of a program.

    Args:
        program: scheduled for one device.
        cluster: the chips that it runs on.
        mesh: ways of every axis, outermost first; None for what the program names.
        coordinates: of every device in the mesh's order: x, y, z, core, slice.
        planned: the plan that it was compiled from, where it was.
        memory: of one device, where the compiler said it.
        refused: options that the compiler did not take.

    Raises:
        BadInput: the program has no schedule, or the chips are no TPUs.
    """
    timeline = time_program(program, cluster, mesh=mesh, coordinates=coordinates)
    unread = (f"not understood, {count} times: {what}" for what, count in program.unknown.items())
    step = seen(
        program,
        timeline,
        cluster,
        mesh=mesh_for(program, mesh),
        places=coordinates,
        planned=planned,
        memory=memory,
    )
    cycles, flops = compute_cycles(program), program_flops(program)
    elsewhere = _elsewhere(program, cluster, flops, timeline.seconds)
    return Reading(
        program=program,
        timeline=timeline,
        cycles=cycles,
        compute_seconds=cycles.compute / rates_of(cluster.chip).clock + timeline.of_kind("kernel"),
        flops=flops,
        collectives=tuple(_collectives(program, cluster, mesh, coordinates, timeline)),
        findings=findings_of(step, *refused_options(refused)),
        notes=(*elsewhere, *timeline.notes, *unread),
    )


def is_of_its_size(program: Program, cluster: Cluster) -> bool:
    """Whether a program is for one device, for all of a cluster, or for each of its slices.

    Several slices may run a program each, tied together over the data-center network.
    """
    devices = cluster.chips * cluster.chip.devices_per_chip
    return program.devices in {1, devices, devices // cluster.slices}


def _elsewhere(program: Program, cluster: Cluster, flops: float, seconds: float) -> Iterator[str]:
    """That a program was compiled for other chips than those that it is read on."""
    rates = rates_of(cluster.chip)
    peak = max(rates.peak_flops, rates.int8_flops if _has_integers(program) else 0.0)
    if seconds and flops > peak * seconds:
        yield (
            f"{flops / seconds / peak:.0%} of {cluster.chip.id}'s peak FLOP/s: no chip does that; "
            "the program's cycles are those of another chip, so this step is none"
        )
    if not is_of_its_size(program, cluster):
        yield (
            f"the program is for {program.devices:,} devices and {cluster.name} has "
            f"{cluster.chips * cluster.chip.devices_per_chip:,}: "
            "links, clock and memory are those of other chips than it was compiled for"
        )


def _has_integers(program: Program) -> bool:
    """Whether matmuls are of 8-bit integers."""
    return any(
        factors and factors <= INT8
        for visit in walk(program)
        if (factors := factors_of(program, visit.op, visit.computation))
    )


def program_flops(program: Program) -> float:
    """FLOPs of one device and step: matmuls, and Pallas kernels by their shapes."""
    kernels = sum(
        visit.times * work_of(visit.op, visit.computation).flops
        for visit in walk(program)
        if is_pallas(visit.op)
    )
    return matmul_flops(program) + kernels


def _collectives(
    program: Program,
    cluster: Cluster,
    mesh: Mapping[str, int] | None,
    coordinates: tuple[Place, ...],
    timeline: Timeline,
) -> list[CollectiveVerdict]:
    """Collectives of the same kind, axes and strategy together, the longest first."""
    links = interconnect(cluster, coordinates)
    exposed: dict[str, float] = {}
    for cost in timeline.costs:
        exposed[cost.name] = exposed.get(cost.name, 0.0) + cost.exposed
    table: dict[tuple[object, ...], CollectiveVerdict] = {}
    for each in collectives(program, mesh):
        row = _row(each, links.seconds(each) * each.count, exposed.get(each.name, 0.0))
        key = (row.kind, row.axes, row.strategy, row.asynchronous)
        before = table.get(key)
        table[key] = row if before is None else _added(before, row)
    return sorted(table.values(), key=lambda row: -row.seconds)


def _row(each: Collective, seconds: float, exposed: float) -> CollectiveVerdict:
    return CollectiveVerdict(
        kind=each.kind,
        axes=each.axes,
        count=each.count,
        bytes_per_chip=each.bytes_per_chip,
        strategy=str(each.strategy),
        asynchronous=each.asynchronous,
        seconds=seconds,
        exposed_seconds=exposed,
    )


def _added(one: CollectiveVerdict, other: CollectiveVerdict) -> CollectiveVerdict:
    return CollectiveVerdict(
        kind=one.kind,
        axes=one.axes,
        count=one.count + other.count,
        bytes_per_chip=one.bytes_per_chip + other.bytes_per_chip,
        strategy=one.strategy,
        asynchronous=one.asynchronous,
        seconds=one.seconds + other.seconds,
        exposed_seconds=one.exposed_seconds + other.exposed_seconds,
    )
