"""What a performance engineer would see in a compiled step, with its cost and what to change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from muster.planner.plan_file import PlannedRun
from muster.proof.costs import COLLECTIVE
from muster.proof.hlo import Program, collectives, walk
from muster.proof.hlo.flops import matmul_flops_of
from muster.proof.names import direction, label
from muster.proof.network import interconnect
from muster.proof.timeline import Timeline
from muster.roofline.memory import dtype_bytes
from muster.roofline.remat import Remat
from muster.sharding.rules import padded_table, shards

# Below a hundredth of the step nothing is worth a line.
LEAST_SHARE = 0.01
LARGE_BYTES = 64 * 1024**2
# A matmul below this share of the unit's rate has lost more than pipelines' ends explain.
SLOW_MATMUL = 0.6
SPARE = 0.3


class Room(Protocol):
    """One device's HBM, bytes."""

    @property
    def total(self) -> int:
        """What the step needs."""

    @property
    def usable(self) -> int:
        """What there is."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that costs time or memory.

    Attributes:
        id: a name for programs.
        cost_seconds: of a step; 0 where it costs memory alone.
        what: in a sentence.
        change: what would better it.
    """

    id: str
    cost_seconds: float
    what: str
    change: str


def findings_of(
    planned: PlannedRun,
    program: Program,
    timeline: Timeline,
    memory: Room | None,
    mesh: Mapping[str, int],
) -> tuple[Finding, ...]:
    """All findings, the costliest first."""
    least = LEAST_SHARE * timeline.seconds
    found = [
        *_copies(planned, program),
        *_slow_matmuls(planned, program),
        *_exposed(timeline),
        *_single_rings(planned, program, mesh),
        *_replicated(planned),
        *_spare_memory(planned, program, memory),
    ]
    return tuple(
        sorted(
            (each for each in found if each.cost_seconds >= least or each.id == "replicated"),
            key=lambda each: -each.cost_seconds,
        )
    )


def _clock(planned: PlannedRun) -> float:
    fact = planned.cluster.chip.fact("core.clock_hz")
    assert fact is not None
    assert isinstance(fact.value, int | float)
    return float(fact.value)


def _copies(planned: PlannedRun, program: Program) -> Iterator[Finding]:
    """Arrays laid out anew: the compiler's `copy` operations on the main core."""
    cycles = sum(
        visit.times * (visit.op.estimated_cycles or 0)
        for visit in walk(program)
        if visit.op.opcode in {"copy", "transpose"} and not visit.thread
    )
    if cycles:
        rows = planned.architecture.d_model / planned.layout.weight_shards
        yield Finding(
            id="relayout",
            cost_seconds=cycles / _clock(planned),
            what=f"arrays are laid out anew in memory (a weight shard has {rows:g} rows of D)",
            change="fewer weight shards with `data` above them keep whole tiles together",
        )


def _slow_matmuls(planned: PlannedRun, program: Program) -> Iterator[Finding]:
    """Matmuls far below the unit's rate, the time beyond what it would need."""
    chip, clock = planned.cluster.chip, _clock(planned)
    per_cycle = chip.bf16_flops / chip.devices_per_chip / clock
    lost: dict[str, tuple[float, float]] = {}
    for visit in walk(program):
        cycles = visit.op.estimated_cycles
        if visit.thread or not cycles:
            continue
        flops = matmul_flops_of(program, visit.op, visit.computation)
        if not flops or flops / (cycles * per_cycle) >= SLOW_MATMUL:
            continue
        name = label(program, visit.op, visit.computation)
        before = lost.get(name, (0.0, 0.0))
        lost[name] = (
            before[0] + visit.times * (cycles - flops / per_cycle),
            before[1] + visit.times * cycles,
        )
    for name, (beyond, whole) in sorted(lost.items(), key=lambda each: -each[1][0])[:3]:
        yield Finding(
            id="slow-matmul",
            cost_seconds=beyond / clock,
            what=f"{name} runs at {1 - beyond / whole:.0%} of the matrix unit's rate",
            change="dims that are multiples of the unit's; less work fused before and after it",
        )


def _exposed(timeline: Timeline) -> Iterator[Finding]:
    """Collectives that the main core waits for."""
    waits: dict[str, float] = {}
    for cost in timeline.costs:
        if cost.kind == COLLECTIVE and cost.collective is not None:
            axes = " and ".join(cost.collective.axes) or "no axis"
            key = f"{cost.collective.kind} over {axes}"
            waits[key] = waits.get(key, 0.0) + cost.exposed
    for key, seconds in sorted(waits.items(), key=lambda each: -each[1])[:3]:
        yield Finding(
            id="exposed-collective",
            cost_seconds=seconds,
            what=f"{key}: the core waits for it",
            change="a layout with fewer ways on that axis, or a larger batch a chip to hide it",
        )


def _single_rings(
    planned: PlannedRun, program: Program, mesh: Mapping[str, int]
) -> Iterator[Finding]:
    """Collectives over several torus axes that go round one ring only."""
    if not planned.cluster.chip.compiler:
        return
    links = interconnect(planned.cluster)
    seconds = 0.0
    for each in collectives(program, mesh):
        if each.strategy.colors == 1 and len(each.strategy.rings) > 1:
            seconds += links.seconds(each) * each.count / 2
    if seconds:
        yield Finding(
            id="one-colour",
            cost_seconds=seconds,
            what="collectives go round one ring though the torus offers more",
            change="axes of the mesh that take whole torus axes",
        )


def _replicated(planned: PlannedRun) -> Iterator[Finding]:
    """Large weights that no axis of a mesh of many chips splits."""
    if planned.layout.weight_shards * planned.layout.tensor == 1:
        return
    each_number = dtype_bytes(planned.workload.param_dtype)
    for weight in padded_table(planned.architecture, planned.layout):
        size = weight.count * each_number
        if shards(weight, planned.layout) == 1 and size >= LARGE_BYTES:
            yield Finding(
                id="replicated",
                cost_seconds=0.0,
                what=f"{weight.name} ({size / 1e6:,.0f} MB) is whole on every chip",
                change="ways that divide its dims",
            )


def _spare_memory(planned: PlannedRun, program: Program, memory: Room | None) -> Iterator[Finding]:
    """Recomputation that memory to spare makes unnecessary."""
    if memory is None or planned.remat is Remat.NONE:
        return
    spare = 1 - memory.total / memory.usable
    if spare < SPARE:
        return
    cycles = sum(
        visit.times * (visit.op.estimated_cycles or 0)
        for visit in walk(program)
        if direction(program.op_name(visit.op)) == "recompute"
    )
    yield Finding(
        id="spare-memory",
        cost_seconds=cycles / _clock(planned),
        what=f"{spare:.0%} of HBM is free while {planned.remat.value} computes again",
        change="a policy that keeps more (--remat none, or minimal)",
    )
