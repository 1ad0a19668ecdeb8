"""Matmuls that do not reach the matrix unit's rate, and those whose dims do not fill it.

The unit is d x d: it contracts d numbers for d columns at once, d = 128 or 256 (`core.mxu_dim`).
Of a matmul of M rows, K contracted and N columns one of M and N lies along the other side, so

    filled = K / ceil(K, d) * max(M / ceil(M, d), N / ceil(N, d))

of its cycles are worth anything. The book's Part 2, "How to Think About TPUs".
"""

import math
from collections.abc import Iterator

from muster.proof.findings.finding import Finding, Seen
from muster.proof.hlo import Computation, Op, Program, Visit
from muster.proof.hlo.flops import matmul_flops_of
from muster.proof.names import label, main_op

# A matmul below this share of the unit's rate has lost more than pipelines' ends explain.
SLOW = 0.6
MOST = 3
_LABELS = 3


def slow(step: Seen) -> Iterator[Finding]:
    """Matmuls far below the unit's rate, the time beyond what it would need."""
    chip = step.cluster.chip
    peak = chip.bf16_flops / chip.devices_per_chip
    lost: dict[str, tuple[float, float]] = {}
    for visit, seconds, flops in _matmuls(step):
        if visit.times * flops / (seconds * peak) >= SLOW:
            continue
        name = label(step.program, visit.op, visit.computation)
        beyond, whole = lost.get(name, (0.0, 0.0))
        lost[name] = (beyond + seconds - visit.times * flops / peak, whole + seconds)
    for name, (beyond, whole) in sorted(lost.items(), key=lambda each: -each[1][0])[:MOST]:
        yield Finding(
            id="slow-matmul",
            cost_seconds=beyond,
            what=f"{name} runs at {1 - beyond / whole:.0%} of the matrix unit's rate",
            change="more rows a chip; less work fused before and after it",
        )


def padded(step: Seen) -> Iterator[Finding]:
    """Matmuls whose dims are no multiples of the unit's side."""
    fact = step.cluster.chip.fact("core.mxu_dim")
    if fact is None or not isinstance(fact.value, int):
        return
    side = fact.value
    lost: dict[str, tuple[float, tuple[int, int, int]]] = {}
    for visit, seconds, flops in _matmuls(step):
        sizes = sizes_of(step.program, visit.op, visit.computation, flops)
        if sizes is None:
            continue
        share = 1 - filled(*sizes, side)
        if share > 0:
            name = label(step.program, visit.op, visit.computation)
            before, _ = lost.get(name, (0.0, sizes))
            lost[name] = (before + seconds * share, sizes)
    for name, (wasted, (M, K, N)) in sorted(lost.items(), key=lambda each: -each[1][0])[:MOST]:
        yield Finding(
            id="padded-matmul",
            cost_seconds=wasted,
            what=f"{name} ({M:,} x {K:,} x {N:,}) is padded to a matrix unit of {side} x {side}",
            change=f"dims that are multiples of {side} on each chip: fewer ways that split them",
        )


def filled(M: int, K: int, N: int, side: int) -> float:
    """The share of the unit that a matmul fills.

    >>> filled(1024, 128, 128, 128), filled(1024, 64, 128, 128), filled(8, 128, 96, 128)
    (1.0, 0.5, 0.75)
    """
    return _fill(K, side) * max(_fill(M, side), _fill(N, side))


def _fill(size: int, side: int) -> float:
    return size / (math.ceil(size / side) * side)


def _matmuls(step: Seen) -> Iterator[tuple[Visit, float, float]]:
    """Matmuls of the main core with their seconds in a step, and the FLOPs of one run."""
    for visit in step.visits:
        if not visit.op.estimated_cycles:
            continue
        flops = matmul_flops_of(step.program, visit.op, visit.computation)
        if flops and (seconds := step.seconds(visit)):
            yield visit, seconds, flops


def sizes_of(
    program: Program, op: Op, at: Computation, flops: float
) -> tuple[int, int, int] | None:
    """M, K and N of an operation's matmul, for the unit's purposes; None where it has several.

    Dims that a convolution keeps apart (heads) count as one with what they multiply: K is what the
    FLOPs leave for it, 2 M K N, so padding is never made up.
    """
    inner = main_op(program, op)
    home = at if inner is op else _home(program, op, inner)
    if home is None or inner.opcode not in {"convolution", "dot"}:
        return None
    numbers = inner.shape.numbers
    if not numbers or matmul_flops_of(program, inner, home) != flops:
        return None
    K = round(flops / (2 * numbers))
    N = _columns(inner, home)
    return (numbers // N, K, N) if K and N and numbers % N == 0 else None


def _home(program: Program, op: Op, inner: Op) -> Computation | None:
    """The computation inside a fusion that an operation stands in."""
    for computation in program.called_by(op):
        if computation.by_name.get(inner.name) is inner:
            return computation
        for each in computation.ops:
            if each.opcode == "fusion" and (found := _home(program, each, inner)):
                return found
    return None


def _columns(op: Op, at: Computation) -> int:
    """N: the result's numbers that are not of the left operand."""
    right = at.by_name.get(op.operands[1]) if len(op.operands) > 1 else None
    if right is None:
        return 0
    if op.opcode == "dot":
        left = at.by_name.get(op.operands[0])
        if left is None:
            return 0
        contracted = op.attributes.get("rhs_contracting_dims", "").strip("{}").split(",")
        kept = [size for dim, size in enumerate(right.shape.dims) if str(dim) not in contracted]
        batch = op.attributes.get("rhs_batch_dims", "").strip("{}").split(",")
        apart = [right.shape.dims[int(dim)] for dim in batch if dim.isdigit()]
        return math.prod(kept) // max(1, math.prod(apart))
    parts = op.attributes.get("dim_labels", "").replace("->", "_").split("_")
    if len(parts) != _LABELS or "o" not in parts[1]:
        return 0
    return right.shape.dims[parts[1].index("o")]
