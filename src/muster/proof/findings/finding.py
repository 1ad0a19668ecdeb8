"""What a finding is, and what it is looked for in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from muster.hardware import Cluster
from muster.planner.plan_file import PlannedRun
from muster.proof.costs import COLLECTIVE, Cost
from muster.proof.durations import Durations
from muster.proof.hlo import Collective, Computation, Op, Program, Visit, walk
from muster.proof.network import Interconnect, Place, interconnect
from muster.proof.rates import rates_of
from muster.proof.timeline import Timeline

_THROUGH = frozenset({"bitcast", "get-tuple-element", "copy", "copy-start", "copy-done", "reshape"})
_FARTHEST = 16


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
        cost_seconds: of a step; 0 where it costs memory alone, or nothing that is known.
        what: in a sentence.
        change: what would better it.
    """

    id: str
    cost_seconds: float
    what: str
    change: str

    @property
    def of_memory(self) -> bool:
        """Whether it is worth a line without costing time."""
        return self.id in {"replicated", "whole-array"}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A compiled step, read and timed.

    Attributes:
        mesh: ways of every axis, outermost first; empty where it is not known.
        places: x, y, z, core and slice of every device in order; empty where they are not known.
        planned: the plan that it is of, where it is of one.
        memory: where the compiler said it.
    """

    program: Program
    timeline: Timeline
    cluster: Cluster
    mesh: Mapping[str, int]
    places: tuple[Place, ...] = ()
    planned: PlannedRun | None = None
    memory: Room | None = None

    @cached_property
    def durations(self) -> Durations:
        """How long the main core takes for an operation, as in the timeline."""
        return Durations(program=self.program, rates=rates_of(self.cluster.chip))

    def seconds(self, visit: Visit) -> float:
        """Of an operation in a step, as often as it runs."""
        return visit.times * self.durations.of(visit.computation, visit.op).seconds

    @cached_property
    def links(self) -> Interconnect:
        """What collectives go over."""
        return interconnect(self.cluster, self.places)

    @cached_property
    def visits(self) -> tuple[Visit, ...]:
        """Every operation of the step that runs on the main core."""
        return tuple(visit for visit in walk(self.program) if not visit.thread)

    @cached_property
    def collectives(self) -> tuple[tuple[Cost, Collective], ...]:
        """Every collective with what it costs in a step."""
        return tuple(
            (cost, cost.collective)
            for cost in self.timeline.costs
            if cost.kind == COLLECTIVE and cost.collective is not None
        )

    @cached_property
    def spent(self) -> Mapping[str, float]:
        """Seconds of the core's time in a step, by the name of the operation."""
        table: dict[str, float] = {}
        for cost in self.timeline.costs:
            table[cost.name] = table.get(cost.name, 0.0) + cost.exposed
        return table

    @cached_property
    def standing(self) -> Mapping[str, tuple[Op, Computation]]:
        """Operations of the schedule by name, with where they stand."""
        return {visit.op.name: (visit.op, visit.computation) for visit in self.visits}

    @property
    def usable(self) -> float:
        """Bytes of HBM that a program on one device may have."""
        chip = self.cluster.chip
        return float(self.memory.usable if self.memory else chip.hbm_bytes / chip.devices_per_chip)


def seen(
    program: Program,
    timeline: Timeline,
    cluster: Cluster,
    *,
    mesh: Mapping[str, int],
    places: tuple[Place, ...] = (),
    planned: PlannedRun | None = None,
    memory: Room | None = None,
) -> Seen:
    """A step to look for findings in; axes of one way are left out of its mesh."""
    split = {axis: ways for axis, ways in mesh.items() if ways > 1}
    return Seen(
        program=program,
        timeline=timeline,
        cluster=cluster,
        mesh=split,
        places=places,
        planned=planned,
        memory=memory,
    )


def sources(computation: Computation, name: str) -> Iterator[Op]:
    """What an operation's value comes from, through what only moves or names it."""
    waiting, met = [name], set[str]()
    while waiting and len(met) < _FARTHEST:
        at = waiting.pop(0)
        op = computation.by_name.get(at)
        if op is None or at in met:
            continue
        met.add(at)
        yield op
        if op.opcode in _THROUGH or op.phase == "done":
            waiting += op.operands[:1]


def over(axes: tuple[str, ...]) -> str:
    """Mesh axes in words.

    >>> over(("fsdp", "sequence")), over(())
    ('over fsdp x sequence', 'between no devices')
    """
    return f"over {' x '.join(axes)}" if axes else "between no devices"
