"""How often a loop runs: what the compiler wrote, or else what its condition says.

A counted loop carries a number i in its tuple:

    while (i < limit) { ...; i = i + step }

Scalars are followed through copies, conversions, tuples, fusions and the loops around, until they
are constants or numbers that the loop carries.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from muster.proof.hlo.program import Computation, Op, Program

_WHOLE = re.compile(r"-?\d+")
_SAME = {
    "bitcast",
    "broadcast",
    "convert",
    "copy",
    "copy-done",
    "copy-start",
    "reshape",
}
_DEEPEST = 64
# Of one loop: what leads to its numbers is some ten operations, and never met more often.
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Carried:
    """The loop's number at `index` of its tuple as the body began, and `added` to it."""

    index: int
    added: int = 0


type Scalar = int | Carried | None


@dataclass
class Loops:
    """Trip counts of a program's loops.

    Attributes:
        known: those that were asked for, by the loop's computation and its name.
        steps: operations that were followed for the loop that is looked at.
    """

    program: Program
    known: dict[tuple[str, str], int | None] = field(default_factory=dict, init=False)
    steps: int = field(default=0, init=False)

    @cached_property
    def callers(self) -> Mapping[str, tuple[Computation, Op]]:
        """The loop of each body and condition, and where it stands."""
        return {
            name: (computation, op)
            for computation in self.program.computations.values()
            for op in computation.ops
            if op.opcode == "while"
            for name in op.called
        }

    def trips(self, computation: Computation, loop: Op) -> int | None:
        """How often a loop's body runs; None where nothing tells, or it is not found soon."""
        key = (computation.name, loop.name)
        if key not in self.known:
            self.steps = 0
            self.known[key] = self._trips(computation, loop)
        return self.known[key]

    def _trips(self, computation: Computation, loop: Op) -> int | None:
        known = loop.backend.get("known_trip_count") or {}
        if isinstance(known, Mapping) and "n" in known:
            return times if (times := int(known["n"])) >= 0 else None
        called = {key: loop.attributes.get(key, "").lstrip("%") for key in ("condition", "body")}
        condition = self.program.computations.get(called["condition"])
        body = self.program.computations.get(called["body"])
        if condition is None or body is None:
            return None
        return self._count(condition, body, computation, loop)

    def _count(
        self, condition: Computation, body: Computation, around: Computation, loop: Op
    ) -> int | None:
        test, inside = self._comparison(condition, condition.root, {})
        if test is None or len(test.operands) != 2:
            return None
        left, right = (self._scalar(inside[0], name, inside[1], 0) for name in test.operands)
        direction = test.attributes.get("direction", "")
        if isinstance(right, Carried) and isinstance(left, int):
            left, right = right, left
            direction = direction.translate(str.maketrans("LG", "GL"))
        if not isinstance(left, Carried):
            return None
        limit = self._at_start(right, body, around, loop)
        start = self._at_start(Carried(left.index), body, around, loop, even_if_changed=True)
        step = self._step(left.index, body)
        if limit is None or start is None or not step:
            return None
        return _count_steps(start + left.added, limit, step, direction)

    def _comparison(
        self, computation: Computation, op: Op, bound: Mapping[str, Scalar]
    ) -> tuple[Op | None, tuple[Computation, Mapping[str, Scalar]]]:
        """The comparison that a condition comes to, and where it stands."""
        for _ in range(_DEEPEST):
            if op.opcode == "compare":
                return op, (computation, bound)
            if op.opcode == "fusion" and (inner := next(self.program.called_by(op), None)):
                bound = self._bound(computation, op, inner, bound, 0)
                computation, op = inner, inner.root
            elif op.opcode in _SAME and op.operands[0] in computation.by_name:
                op = computation.by_name[op.operands[0]]
            else:
                break
        return None, (computation, bound)

    def _bound(
        self, computation: Computation, op: Op, inner: Computation, bound: Mapping[str, Scalar],
        deep: int,
    ) -> dict[str, Scalar]:  # fmt: skip
        """What a fusion's parameters stand for."""
        return {
            inner.parameters[n].name: self._scalar(computation, operand, bound, deep + 1)
            for n, operand in enumerate(op.operands)
            if n in inner.parameters
        }

    def _scalar(
        self, computation: Computation, name: str, bound: Mapping[str, Scalar], deep: int
    ) -> Scalar:
        """What an operation's number is; None where it is not a scalar that can be followed."""
        op = computation.by_name.get(name)
        self.steps += 1
        if op is None or deep > _DEEPEST or self.steps > _MOST_STEPS:
            return None
        if name in bound:
            return bound[name]
        inner = next(self.program.called_by(op), None) if op.opcode == "fusion" else None
        value: Scalar = None
        if op.opcode == "constant":
            value = int(op.operands[0]) if _WHOLE.fullmatch(op.operands[0]) else None
        elif op.opcode in _SAME:
            value = self._scalar(computation, op.operands[0], bound, deep + 1)
        elif op.opcode == "get-tuple-element":
            value = self._element(computation, op, bound, deep)
        elif op.opcode in {"add", "subtract"}:
            value = self._sum(computation, op, bound, deep)
        elif inner is not None:
            within = self._bound(computation, op, inner, bound, deep)
            value = self._scalar(inner, inner.root.name, within, deep + 1)
        return value

    def _element(
        self, computation: Computation, op: Op, bound: Mapping[str, Scalar], deep: int
    ) -> Scalar:
        index = int(op.attributes.get("index", "0"))
        source = computation.by_name.get(op.operands[0])
        if source is None:
            return None
        if source.opcode == "parameter":
            return Carried(index) if computation.name in self.callers else None
        if source.opcode == "tuple":
            return self._scalar(computation, source.operands[index], bound, deep + 1)
        if source.opcode == "fusion" and (inner := next(self.program.called_by(source), None)):
            within = self._bound(computation, source, inner, bound, deep)
            if inner.root.opcode == "tuple":
                return self._scalar(inner, inner.root.operands[index], within, deep + 1)
        return None

    def _sum(
        self, computation: Computation, op: Op, bound: Mapping[str, Scalar], deep: int
    ) -> Scalar:
        left, right = (self._scalar(computation, each, bound, deep + 1) for each in op.operands)
        sign = 1 if op.opcode == "add" else -1
        if isinstance(left, int) and isinstance(right, int):
            return left + sign * right
        if isinstance(left, Carried) and isinstance(right, int):
            return Carried(left.index, left.added + sign * right)
        if isinstance(right, Carried) and isinstance(left, int) and sign > 0:
            return Carried(right.index, right.added + left)
        return None

    def _step(self, index: int, body: Computation) -> int | None:
        if body.root.opcode != "tuple":
            return None
        after = self._scalar(body, body.root.operands[index], {}, 0)
        return after.added if isinstance(after, Carried) and after.index == index else None

    def _at_start(
        self, value: Scalar, body: Computation, around: Computation, loop: Op,
        *, even_if_changed: bool = False,
    ) -> int | None:  # fmt: skip
        """What a number that a loop carries is as the loop begins."""
        if not isinstance(value, Carried):
            return value
        if not even_if_changed and self._step(value.index, body) != 0:
            return None
        before = self._carried_in(around, loop, value.index)
        for _ in range(_DEEPEST):  # out through the loops around, which hand it on unchanged
            if not isinstance(before, Carried):
                break
            if around.name not in self.callers:
                return None
            outer_around, outer = self.callers[around.name]
            outer_body = self.program.computations[outer.attributes["body"].lstrip("%")]
            if self._step(before.index, outer_body) != 0:
                return None
            value = Carried(value.index, value.added + before.added)
            before, around = self._carried_in(outer_around, outer, before.index), outer_around
        return before + value.added if isinstance(before, int) else None

    def _carried_in(self, around: Computation, loop: Op, index: int) -> Scalar:
        first = around.by_name.get(loop.operands[0])
        if first is None or first.opcode != "tuple":
            return None
        return self._scalar(around, first.operands[index], {}, 0)


def _count_steps(start: int, limit: int, step: int, direction: str) -> int | None:
    """How often `i` of start, start + step, ... compares with the limit before it does not.

    >>> _count_steps(0, 10, 4, "LT"), _count_steps(10, 0, -1, "GE"), _count_steps(0, 8, 2, "NE")
    (3, 11, 4)
    """
    distance = limit - start
    if direction in {"LE", "GE"}:
        distance += 1 if direction == "LE" else -1
    elif direction == "NE":
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    elif direction not in {"LT", "GT"}:
        return None
    upwards = direction in {"LT", "LE"}
    if (step > 0) != upwards:
        return None if distance * (1 if upwards else -1) > 0 else 0
    return max(0, math.ceil(distance / step))
