"""The scheduled HLO text of a TPU program -> what it does, in order, and how often.

    shape         bf16[8,128]{1,0:T(8,128)(2,1)S(1)} -> Shape
    scan          brackets and strings: where an operation ends, and its parts
    program       Op, Computation, Program
    parse         text -> Program
    nesting       whether its calls can be followed
    trips         how often a loop runs
    schedule      the operations of one step, loops unrolled in number
    groups        replica groups in all their spellings -> groups of devices -> mesh axes
    strategy      how the compiler chose to run a collective
    collectives   every collective of one step
    cycles        the compiler's own estimate of what computes

Pure Python: no array library is needed to read what one compiled.
"""

from muster.proof.hlo.collectives import Collective, collectives
from muster.proof.hlo.cycles import Cycles, compute_cycles
from muster.proof.hlo.parse import parse
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.schedule import Visit, walk
from muster.proof.hlo.shape import Shape, parse_shape

__all__ = [
    "Collective",
    "Computation",
    "Cycles",
    "Op",
    "Program",
    "Shape",
    "Visit",
    "collectives",
    "compute_cycles",
    "parse",
    "parse_shape",
    "walk",
]
