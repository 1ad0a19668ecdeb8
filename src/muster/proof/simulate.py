"""Walks a schedule and keeps the time of the main core and of everything that runs beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.errors import shorten
from muster.proof.costs import COLLECTIVE, COPIES, COPY, FROM_HOST, GUESSED, SPARSE, TO_HOST
from muster.proof.durations import Durations
from muster.proof.hlo.collectives import UNKNOWN_GROUPS, collective_of, groups_written
from muster.proof.hlo.kinds import (
    begins_elsewhere,
    collective_inside,
    ends_collective,
    feeds_elsewhere,
    held_collective,
    is_dma,
    is_fed_later,
    is_free,
)
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.schedule import Visit, costliest_branch, loop_parts
from muster.proof.hlo.shape import HOST
from muster.proof.hlo.trips import Loops
from muster.proof.names import label
from muster.proof.network import Interconnect
from muster.proof.rates import Rates, rates_of
from muster.proof.running import Part, Running

__all__ = ["NOT_AS_WRITTEN", "Watch", "rates_of"]

# What comes of an operation as no compiler writes it (a dot of nothing, cycles that are no number):
# there is more of it than can be listed. A note of the error says which operation it was.
NOT_AS_WRITTEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

NOT_PLACED = (
    "where each device stands is not in the program: the chips of a group are taken to be "
    "neighbours with links of their own, which is the best case"
)


@dataclass
class Watch:
    """Times the computations of one program, each once."""

    program: Program
    rates: Rates
    links: Interconnect
    mesh: Mapping[str, int]
    parts: dict[str, Part] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loops = Loops(self.program)
        self.durations = Durations(program=self.program, rates=self.rates)

    def run(self, computation: Computation, around: Running | None = None) -> Part:
        """One run of a computation.

        Args:
            computation: what runs.
            around: what calls it; None where nothing still runs as it begins.
        """
        at = around.inside(computation) if around else Running(computation)
        alone = not at.free
        if alone and computation.name in self.parts:
            return self.parts[computation.name]
        for op in computation.ops:
            try:
                self._step(at, op)
            except NOT_AS_WRITTEN as error:
                if not hasattr(error, "__notes__"):  # the innermost knows best
                    error.add_note(f"{op.opcode} {op.name}")
                raise
        at.part.seconds = max([at.now, *(end for end, _ in at.due.values())])
        if alone:
            self.parts[computation.name] = at.part
        return at.part

    def _step(self, at: Running, op: Op) -> None:
        inner = collective_inside(self.program, op)
        if inner is not None:
            self._collective(at, op, inner)
        elif op.opcode == "while":
            self._loop(at, op)
        elif op.opcode in {"call", "conditional"}:
            self._inline(at, op)
        elif is_dma(op):
            self._copy(at, op)
        elif begins_elsewhere(op):
            self._elsewhere(at, op)
        elif feeds_elsewhere(op):
            self._fed(at, op)
        elif op.phase == "done" or ends_collective(self.program, op):
            self._wait(at, op)
        elif op.estimated_cycles is not None or not is_free(op):
            self._compute(at, op)

    def _compute(self, at: Running, op: Op) -> None:
        took = self.durations.of(at.computation, op)
        if took.note:
            self.notes[took.note] = None
        at.spend(op, took.kind, took.seconds, self._label(at, op))

    def _collective(self, at: Running, op: Op, inner: Op) -> None:
        visit = Visit(op=op, times=1, computation=at.computation)
        found = collective_of(self.program, visit, inner, self.mesh)
        if found.axes == (UNKNOWN_GROUPS,):
            groups = shorten(groups_written(inner))
            self.notes[f"not understood: the groups {groups}, taken to be of all devices"] = None
        seconds = self.links.seconds(found)
        if seconds and self.links.assumes_neighbours(found):
            self.notes[NOT_PLACED] = None
        if (apart := self.links.apart(found)) > 1:
            axes = " and ".join(found.axes)
            self.notes[f"chips of {axes} stand {apart} apart: {apart} groups share links"] = None
        key = at.add(op, COLLECTIVE, seconds, self._label(at, op), collective=found)
        tracks = (*self.links.tracks(found), *(f"{SPARSE} {core}" for core in found.sparse_cores))
        if is_fed_later(at.computation, op):
            at.unfed[op.name] = (op, tracks, seconds)
            return
        end = at.occupy(op, COLLECTIVE, tracks, seconds)
        if found.asynchronous:
            at.due[_ticket(op, inner)] = (end, key)
        else:
            at.wait_until(op, end, key)

    def _copy(self, at: Running, op: Op) -> None:
        """A copy between memories; of a slice, where one is read or written."""
        arrays = [array for array in op.shape.arrays() if array.numbers > 1]
        moved = min((array.padded_bytes for array in arrays), default=0)
        made = next(
            (op.shape if op.opcode == "copy-start" else op.shape.elements[1]).arrays(), None
        )
        if made is None:
            raise ValueError("a copy of nothing")
        if any(array.memory_space == HOST for array in arrays):
            track = TO_HOST if made.memory_space == HOST else FROM_HOST
            seconds = moved / self.rates.host
        else:
            track, seconds = COPIES, moved / self.rates.hbm
        key = at.add(op, COPY, seconds, self._label(at, op))
        at.due[op.name] = (at.occupy(op, COPY, (track,), seconds), key)

    def _elsewhere(self, at: Running, op: Op) -> None:
        """What another core runs meanwhile."""
        seconds = sum(self.run(called).seconds for called in self.program.called_by(op))
        key = at.add(op, GUESSED, seconds, self._label(at, op))
        at.due[op.name] = (at.occupy(op, GUESSED, (SPARSE,), seconds), key)

    def _fed(self, at: Running, op: Op) -> None:
        """Another core was started early, and gets what it works on now."""
        start = op.operands[0]
        if start in at.unfed:
            begun, tracks, seconds = at.unfed.pop(start)
            key = (at.computation.name, start)
            at.due[op.name] = (at.occupy(begun, COLLECTIVE, tracks, seconds), key)
        elif start in at.due:
            end, key = at.due.pop(start)
            at.due[op.name] = (max(end, at.now + at.part.costs[key].seconds), key)

    def _wait(self, at: Running, op: Op) -> None:
        held = held_collective(self.program, op) if op.opcode == "fusion" else None
        ticket = _ticket(op, held) if held is not None else _ticket_of_done(at.computation, op)
        if ticket in at.due:
            at.wait_until(op, *at.due.pop(ticket))

    def _inline(self, at: Running, op: Op) -> None:
        if op.opcode == "conditional":
            called = costliest_branch(self.program, op)
        else:
            called = next(self.program.called_by(op), None)
        if called is not None:
            at.append(self.run(called, at), 1)

    def _loop(self, at: Running, op: Op) -> None:
        trips = self.loops.trips(at.computation, op)
        if trips is None:
            self.notes[f"loop {op.name} does not say how often it runs: counted once"] = None
        _, body = loop_parts(self.program, op)
        if body is None or trips == 0:
            return
        at.append(self.run(body, at), 1)
        if trips is not None and trips > 1:
            at.append(self.run(body), trips - 1)

    def _label(self, at: Running, op: Op) -> str:
        """The model's name of an operation, with that of the loop around it."""
        _, loop = self.loops.callers.get(at.computation.name, (None, None))
        return label(self.program, op, at.computation, loop.op_name if loop else "")


def _ticket(op: Op, inner: Op) -> str:
    """What ties the end of something asynchronous to its start."""
    if op.opcode == "fusion":
        return f"channel {inner.attributes.get('channel_id', op.name)}"
    if op.opcode == "send":
        return _rendezvous(op)
    return op.name


def _ticket_of_done(computation: Computation, op: Op) -> str:
    start = computation.by_name.get(op.operands[0]) if op.operands else None
    if start is None:
        return op.name
    return _rendezvous(start) if start.opcode == "recv" else start.name


def _rendezvous(op: Op) -> str:
    said = op.attributes.get("frontend_attributes", "")
    _, _, after = said.partition('_xla_host_transfer_rendezvous="')
    return "rendezvous " + (after.split('"')[0] if after else op.name)
