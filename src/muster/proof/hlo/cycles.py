"""The compiler's own estimate of what one device computes in one step.

    cycles = sum over the schedule of  estimated_cycles * times

Left out: collectives, whose time is the network's; Pallas kernels and other custom calls, of which
the compiler makes no estimate; and what another core (the sparse one) does meanwhile.
"""

from collections import Counter
from dataclasses import dataclass

from muster.proof.hlo.kinds import collective_inside, ends_collective, is_dma, is_free, is_pallas
from muster.proof.hlo.program import Program
from muster.proof.hlo.schedule import walk


@dataclass(frozen=True, kw_only=True)
class Cycles:
    """Estimated cycles of one step on one device.

    Attributes:
        compute: of the main cores.
        other_cores: of what runs on the sparse cores.
        without: operations of the main core in one step that have no estimate, by opcode.
        uncertain: names of loops that do not say how often they run; their bodies count once.
    """

    compute: int
    other_cores: int
    without: Counter[str]
    uncertain: tuple[str, ...]


def compute_cycles(program: Program) -> Cycles:
    """Add up the estimates of one step."""
    compute = other = 0
    without: Counter[str] = Counter()
    uncertain: dict[str, None] = {}
    for visit in walk(program):
        op = visit.op
        if not visit.certain:
            uncertain |= dict.fromkeys(visit.loops)
        if collective_inside(program, op) is not None or ends_collective(program, op):
            continue
        cycles = None if is_pallas(op) else op.estimated_cycles
        if cycles is None:
            if not visit.thread and not is_free(op) and not is_dma(op):
                called = op.custom_call_target if op.opcode == "custom-call" else op.opcode
                without[called] += visit.times
        elif visit.thread:
            other += cycles * visit.times
        else:
            compute += cycles * visit.times
    return Cycles(compute=compute, other_cores=other, without=without, uncertain=tuple(uncertain))
