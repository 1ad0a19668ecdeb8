"""One device's HBM: the compiler's count beside the plan's, term by term as far as both tell.

    parameters, moments, batch   the program's own arguments, by their names and padded sizes
    activations                  arrays of all layers that the backward loop reads, none a weight
    gradients                    arrays of all layers in the shapes of weights that it writes
    the rest                     temporaries that are neither: workspace, logits, gathered weights

The last three share the compiler's one figure for temporaries. They are told apart only where the
layers are a loop, and only where the two that can be added up are no more than that figure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.planner.plan_file import MEMORY_TERMS, PlannedRun
from muster.proof.compiler import Memory
from muster.proof.hlo import Program, Shape
from muster.proof.hlo.shape import HOST
from muster.units import format_bytes

CLOSE = 0.10
# What a program's arguments are called, by what the trainer calls its own.
_NAMED = {"parameters": "state.params", "moments": "state.optimizer", "batch": "batch"}


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of one device's memory, bytes.

    Attributes:
        compiled: of the program; None where it cannot be told apart.
        predicted: of the plan; None where the plan has no such term.
    """

    name: str
    compiled: float | None
    predicted: float | None


@dataclass(frozen=True, kw_only=True)
class MemoryVerdict:
    """One device's HBM, bytes: the compiler's count beside the plan's.

    Attributes:
        arguments: parameters, moments and batch; `predicted_arguments` the plan's for them.
        temporaries: whatever lives within a step, outputs that do not replace arguments and code.
        usable: what a program may have.
        gaps: of the temporaries, at least so much is between buffers that never live together: what
            the compiler lays out beyond the most that it says is alive at once.
        terms: the same in parts.
    """

    arguments: int
    temporaries: int
    total: int
    usable: int
    predicted_arguments: float
    predicted_temporaries: float
    predicted_total: float
    gaps: int = 0
    terms: tuple[Term, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it does, by the compiler's count."""
        return self.total <= self.usable

    @property
    def close(self) -> bool:
        """Whether the plan's total is within a tenth of the compiler's."""
        return abs(self.predicted_total - self.total) <= CLOSE * self.total

    @property
    def why(self) -> str:
        """How far the plan's total is from the compiler's, and which term that comes from."""
        if not self.predicted_total:
            return "the plan predicts no memory"
        off = self.predicted_total / self.total - 1
        said = (
            f"the plan's total is {abs(off):.0%} {'above' if off > 0 else 'below'} the compiler's"
        )
        term = max(self.terms, key=_apart, default=None)
        if self.close or term is None or not _apart(term):
            return said
        assert term.compiled is not None
        assert term.predicted is not None
        said += (
            f": most of it {term.name}, {format_bytes(term.predicted)} planned and "
            f"{format_bytes(term.compiled)} compiled"
        )
        if off < 0 and self.gaps > CLOSE * (self.total - self.predicted_total):
            said += f", of which at least {format_bytes(self.gaps)} are gaps between buffers"
        return said

    def to_json(self) -> dict[str, Any]:
        """`memory_per_chip` of `muster verify --json`."""
        return {**asdict(self), "within_tenth": self.close, "why": self.why}


def _apart(term: Term) -> float:
    if term.compiled is None or term.predicted is None:
        return 0.0
    return abs(term.compiled - term.predicted)


def memory_verdict(planned: PlannedRun, counted: Memory, program: Program | None) -> MemoryVerdict:
    """The compiler's count beside the plan's.

    Args:
        planned: the plan.
        counted: by the compiler.
        program: what it compiled; None to compare totals alone.
    """
    plan = predicted_memory(planned)
    chip = planned.cluster.chip
    temporaries = counted.total - counted.arguments
    verdict = MemoryVerdict(
        arguments=counted.arguments,
        temporaries=temporaries,
        total=counted.total,
        usable=int(chip.hbm_bytes / chip.devices_per_chip),
        predicted_arguments=_sum(plan, "params", "optimizer") or 0.0,
        predicted_temporaries=_sum(plan, *_WITHIN) or 0.0,
        predicted_total=plan.get("total", 0.0),
        gaps=max(0, counted.temporaries - counted.peak) if counted.peak else 0,
    )
    terms = () if program is None else tuple(_terms(planned, program, verdict, plan))
    return MemoryVerdict(**{**vars(verdict), "terms": terms})


def predicted_memory(planned: PlannedRun) -> dict[str, float]:
    """The plan's memory of one device by term, bytes; empty where the plan predicts none."""
    estimate = planned.document.get("estimate")
    parts = estimate.get("memory_per_chip") if isinstance(estimate, Mapping) else None
    if not isinstance(parts, Mapping):
        return {}
    devices = planned.cluster.chip.devices_per_chip
    return {key: float(parts[key]) / devices for key in MEMORY_TERMS if key in parts}


_WITHIN = ("gradients", "activations", "logits", "workspace")


def _sum(plan: Mapping[str, float], *keys: str) -> float | None:
    found = [plan[key] for key in keys if key in plan]
    return sum(found) if found else None


def _terms(
    planned: PlannedRun, program: Program, memory: MemoryVerdict, plan: Mapping[str, float]
) -> Iterator[Term]:
    arguments = argument_bytes(program)
    yield Term(name="parameters", compiled=arguments["parameters"], predicted=_sum(plan, "params"))
    yield Term(name="moments", compiled=arguments["moments"], predicted=_sum(plan, "optimizer"))
    yield Term(name="batch", compiled=arguments["batch"], predicted=None)
    other = memory.arguments - sum(arguments.values())
    if abs(other) > 0.001 * memory.arguments:
        yield Term(name="other arguments", compiled=other, predicted=None)
    layers = planned.architecture.num_layers
    activations, gradients = kept_by_layers(program, layers)
    rest = memory.temporaries - activations - gradients
    if not activations or rest < 0:
        within = _sum(plan, *_WITHIN)
        yield Term(name="within the step", compiled=memory.temporaries, predicted=within)
        return
    yield Term(name="activations", compiled=activations, predicted=_sum(plan, "activations"))
    yield Term(name="gradients", compiled=gradients, predicted=_sum(plan, "gradients"))
    workspace = _sum(plan, "logits", "workspace")
    yield Term(name="workspace and logits", compiled=rest, predicted=workspace)


def argument_bytes(program: Program) -> dict[str, int]:
    """Padded bytes in HBM of a training step's arguments, by what they are."""
    found = dict.fromkeys(_NAMED, 0)
    for argument in program.main.parameters.values():
        name = argument.op_name
        for what, begins in _NAMED.items():
            if name.startswith(begins):
                found[what] += _hbm(argument.shape)
    return found


def kept_by_layers(program: Program, layers: int) -> tuple[int, int]:
    """Bytes of activations and of gradients that stand for all layers in the backward loop.

    A loop over layers carries arrays with a first dim of all of them: the weights, their gradients
    in the same shapes, and what the forward pass left for the backward one.
    """
    weights = Counter(
        argument.shape.dims
        for argument in program.main.parameters.values()
        if argument.op_name.startswith(_NAMED["parameters"])
    )
    best = (0, 0)
    for op in program.ops():
        if op.opcode != "while":
            continue
        arrays = [each for each in op.shape.arrays() if each.dims[:1] == (layers,)]
        arrays = [each for each in arrays if _hbm(each) and len(each.dims) > 1]
        kept = [each for each in arrays if each.dims not in weights]
        written: list[Shape] = []
        for dims, argued in weights.items():
            same = [each for each in arrays if each.dims == dims]
            written += same[argued:]
        activations = sum(map(_hbm, kept))
        if activations and (activations, sum(map(_hbm, written))) > best:
            best = activations, sum(map(_hbm, written))
    return best


def _hbm(shape: Shape) -> int:
    return sum(each.padded_bytes for each in shape.arrays() if each.memory_space != HOST)
