"""FLOPs of the matmuls that one step of a program runs, loops counted as often as they run.

    dot           2 * (numbers of the result) * (numbers of the contracted dims)
    convolution   2 * batch * features out * features in * (taps that fall on the input)

A TPU's matmuls are convolutions: dims that a matmul keeps apart (heads) become spatial ones, with a
window whose padding meets the input once for every result. So taps on padding are not counted,
as XLA's own cost analysis does not count them.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.schedule import walk

_CONTRACTED = re.compile(r"[\d,]*")
_LABELS = re.compile(r"([^\W_]+)_([^\W_]+)->([^\W_]+)")
_FIELD = re.compile(r"\b(\w+)=([\dx_-]+)")
_LONGEST = 2**16  # of the shorter of a window and what it makes: heads are fewer


def matmul_flops(program: Program) -> float:
    """FLOPs of every dot and convolution that one device runs in one step."""
    inside: dict[str, float] = {}
    return sum(
        visit.times * _flops_of(program, visit.op, visit.computation, inside)
        for visit in walk(program)
    )


def matmul_flops_of(program: Program, op: Op, at: Computation, *, tile: int = 1) -> float:
    """FLOPs of the matmuls of one run of one operation.

    Args:
        program: where it stands.
        op: the operation.
        at: its computation.
        tile: a side of the matrix unit: a convolution's features, in and out, count as whole tiles,
            so one onto heads of 128 on a unit of 256 counts double.
    """
    return _flops_of(program, op, at, {}, tile)


def factors_of(program: Program, op: Op, at: Computation) -> frozenset[str]:
    """In what formats the matmuls of an operation have their factors; empty where it has none."""
    if op.opcode in {"dot", "convolution"}:
        factors = (at.by_name.get(name) for name in op.operands[:2])
        shapes = (factor.shape for factor in factors if factor is not None)
        return frozenset(array.dtype for shape in shapes for array in shape.arrays())
    if op.opcode != "fusion":
        return frozenset()
    called = ((inner, each) for each in program.called_by(op) for inner in each.ops)
    return frozenset().union(*(factors_of(program, inner, each) for inner, each in called))


def _flops_of(
    program: Program, op: Op, at: Computation, inside: dict[str, float], tile: int = 1
) -> float:
    """Of one run of an operation; of a fusion, what is inside."""
    if op.opcode == "dot":
        return _dot(op, at)
    if op.opcode == "convolution":
        return _convolution(op, at, tile)
    if op.opcode != "fusion":
        return 0.0
    return sum(_flops_in(program, called, inside, tile) for called in program.called_by(op))


def _flops_in(
    program: Program, computation: Computation, inside: dict[str, float], tile: int
) -> float:
    if computation.name not in inside:
        inside[computation.name] = sum(
            _flops_of(program, op, computation, inside, tile) for op in computation.ops
        )
    return inside[computation.name]


def _dot(op: Op, at: Computation) -> float:
    left = at.by_name.get(op.operands[0])
    match = _CONTRACTED.search(op.attributes.get("lhs_contracting_dims", "").strip("{}"))
    if left is None or match is None:
        return 0.0
    contracted = [left.shape.dims[int(dim)] for dim in match.group().split(",") if dim]
    return 2.0 * math.prod(op.shape.dims) * math.prod(contracted)


@dataclass(frozen=True, kw_only=True)
class _Window:
    """One spatial dim of a convolution."""

    size: int
    stride: int
    before: int
    input_dilation: int
    window_dilation: int


def _convolution(op: Op, at: Computation, tile: int) -> float:
    left, right = (at.by_name.get(name) for name in op.operands[:2])
    labels = _LABELS.fullmatch(op.attributes.get("dim_labels", "").strip())
    if left is None or right is None or labels is None:
        return 0.0
    of_input, of_kernel, of_result = labels.groups()
    batch = op.shape.dims[of_result.index("b")]
    features = math.prod(
        tile * math.ceil(right.shape.dims[of_kernel.index(role)] / tile) for role in "io"
    )
    taps = 1
    for dim, window in enumerate(_windows(op.attributes.get("window", ""))):
        digit = str(dim)
        taps *= _taps(
            left.shape.dims[of_input.index(digit)], op.shape.dims[of_result.index(digit)], window
        )
    return 2.0 * batch * features * taps


def _windows(text: str) -> Iterator[_Window]:
    fields = {key: value.split("x") for key, value in _FIELD.findall(text)}
    sizes = fields.get("size", [])
    ones = ["1"] * len(sizes)
    for dim, size in enumerate(sizes):
        yield _Window(
            size=int(size),
            stride=int(fields.get("stride", ones)[dim]),
            before=int(fields.get("pad", ["0_0"] * len(sizes))[dim].split("_")[0]),
            input_dilation=max(1, int(fields.get("lhs_dilate", ones)[dim])),
            window_dilation=int(fields.get("rhs_dilate", ones)[dim]),
        )


@lru_cache(maxsize=4096)
def _taps(inputs: int, results: int, window: _Window) -> int:
    """Pairs (result, tap) that fall on a number of the input, not on padding or between.

    Of the shorter of the two every one is looked at, of the other they are counted; where both are
    longer than any that a matmul keeps apart, all pairs are taken to fall on the input.
    """
    last = (inputs - 1) * window.input_dilation
    result, tap = (results, window.stride), (window.size, window.window_dilation)
    (few, step), (many, stride) = sorted((result, tap))
    if few > _LONGEST:
        return results * window.size
    return sum(
        _on_input(
            window.before - each * step,
            stride=stride,
            many=many,
            last=last,
            dilation=window.input_dilation,
        )
        for each in range(few)
    )


def _on_input(start: int, *, stride: int, many: int, last: int, dilation: int) -> int:
    """How many i < many have 0 <= i * stride - start <= last, a multiple of dilation.

    >>> _on_input(1, stride=1, many=4, last=2, dilation=1)  # places -1, 0, 1, 2
    3
    >>> _on_input(0, stride=2, many=4, last=9, dilation=3)  # of 0, 2, 4, 6
    2
    """
    if stride == 0:
        return many * (0 <= -start <= last and start % dilation == 0)
    first = max(0, -(-start // stride))
    end = min(many - 1, (last + start) // stride)
    common = math.gcd(stride, dilation)
    if start % common or end < first:
        return 0
    period = dilation // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    first += (start // common * inverse - first) % period
    return max(0, (end - first) // period + 1)
