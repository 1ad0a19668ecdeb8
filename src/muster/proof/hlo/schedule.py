"""The operations of one step in their order, each with how often it runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from muster.proof.hlo.kinds import WRAPPERS, collective_inside
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.trips import Loops


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """An operation of the schedule.

    Attributes:
        op: the operation.
        times: how often one step runs it.
        computation: where it stands.
        loops: names of the loops around it, the outermost first.
        certain: whether all of those loops say how often they run; else they count once.
        thread: the core that runs it: "" for the main one.
    """

    op: Op
    times: int
    computation: Computation
    loops: tuple[str, ...] = ()
    certain: bool = True
    thread: str = ""


def walk(program: Program) -> Iterator[Visit]:
    """Every operation that one step runs, in the order of the schedule.

    Loops are entered (their conditions too), and calls; fusions are one operation. Of a
    conditional's branches the one with the most estimated cycles counts.
    """
    loops = Loops(program)
    yield from _walk(program, loops, Visit(op=program.main.root, times=1, computation=program.main))


def loop_parts(program: Program, loop: Op) -> tuple[Computation | None, Computation | None]:
    """The condition and the body of a loop."""
    found = (loop.attributes.get(key, "").lstrip("%") for key in ("condition", "body"))
    condition, body = (program.computations.get(name) for name in found)
    return condition, body


def costliest_branch(program: Program, op: Op) -> Computation | None:
    """The branch of a conditional with the most estimated cycles."""

    def cycles(branch: Computation) -> int:
        return sum(each.estimated_cycles or 0 for each in branch.ops)

    return max(program.called_by(op), key=cycles, default=None)


def _walk(program: Program, loops: Loops, at: Visit) -> Iterator[Visit]:
    for op in at.computation.ops:
        yield Visit(
            op=op,
            times=at.times,
            computation=at.computation,
            loops=at.loops,
            certain=at.certain,
            thread=at.thread,
        )
        for inner in _entered(program, loops, at, op):
            yield from _walk(program, loops, inner)


def _entered(program: Program, loops: Loops, at: Visit, op: Op) -> Iterator[Visit]:
    def inside(computation: Computation, times: int, *, certain: bool, loop: str = "") -> Visit:
        return Visit(
            op=op,
            times=at.times * times,
            computation=computation,
            loops=(*at.loops, loop) if loop else at.loops,
            certain=at.certain and certain,
            thread=at.thread or computation.thread,
        )

    if op.opcode == "while":
        trips = loops.trips(at.computation, op)
        condition, body = loop_parts(program, op)
        often, certain = (1, False) if trips is None else (trips, True)
        if condition is not None:
            yield inside(condition, often + 1, certain=certain, loop=op.name)
        if body is not None:
            yield inside(body, often, certain=certain, loop=op.name)
    elif op.opcode == "call" or (op.opcode in WRAPPERS and collective_inside(program, op) is None):
        for computation in program.called_by(op):
            yield inside(computation, 1, certain=True)
    elif op.opcode == "conditional" and (branch := costliest_branch(program, op)):
        yield inside(branch, 1, certain=True)
