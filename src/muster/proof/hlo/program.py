"""A scheduled program: computations of operations, in the order in which they run."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from muster.proof.hlo.shape import Shape

_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'source_file="([^"]*)"')
_LINE = re.compile(r"source_line=(\d+)")
# Attributes that name computations.
_CALLS = (
    "calls", "to_apply", "condition", "body", "branch_computations", "called_computations",
    "true_computation", "false_computation", "select", "scatter", "comparator",
)  # fmt: skip
# What stands where the compiler could not estimate: the largest signed 64-bit number.
NO_ESTIMATE = 2**63 - 1
PHASES = ("-start", "-update", "-done")


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation.

    Attributes:
        name: without the percent sign; no other of its computation has it.
        opcode: "fusion", "all-gather-start", ...
        shape: of its result.
        operands: names of the operations that it reads, or what stands there of a literal.
        attributes: the rest, by name, as written.
        is_root: whether its result is the computation's.
    """

    name: str
    opcode: str
    shape: Shape
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False

    @cached_property
    def base(self) -> str:
        """The opcode without `-start`, `-update` or `-done`."""
        for phase in PHASES:
            if self.opcode.endswith(phase):
                return self.opcode.removesuffix(phase)
        return self.opcode

    @cached_property
    def phase(self) -> str:
        """Of an asynchronous operation "start", "update" or "done", else nothing."""
        return next((p[1:] for p in PHASES if self.opcode.endswith(p)), "")

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        names: list[str] = []
        for key in _CALLS:
            text = self.attributes.get(key)
            if text and not text.startswith('"'):
                names += (part.strip().lstrip("%") for part in text.strip("{}").split(","))
        return tuple(name for name in names if name)

    @cached_property
    def op_name(self) -> str:
        """The model's own name of it, such as "jit(train_step)/.../dot_general"; "" for none."""
        match = _OP_NAME.search(self.attributes.get("metadata", ""))
        return match.group(1) if match else ""

    @cached_property
    def frame(self) -> int:
        """Number of its stack frame in the program's tables; 0 for none."""
        match = _FRAME.search(self.attributes.get("metadata", ""))
        return int(match.group(1)) if match else 0

    @cached_property
    def backend(self) -> Mapping[str, Any]:
        """What the compiler's back end wrote of it; empty where that is not JSON."""
        text = self.attributes.get("backend_config", "")
        try:
            config = json.loads(text) if text.startswith("{") else {}
        except (ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @cached_property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate; None where it made none."""
        if '"estimated_cycles"' not in self.attributes.get("backend_config", ""):
            return None
        window = self.backend.get("window_config") or {}
        value = int(window.get("estimated_cycles", NO_ESTIMATE))
        return value if 0 <= value < NO_ESTIMATE else None

    @property
    def custom_call_target(self) -> str:
        """What a custom call calls; "" of other operations."""
        return self.attributes.get("custom_call_target", "").strip('"')


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Operations in the order of the schedule, or of their dependencies inside a fusion.

    Attributes:
        thread: the core that runs it where it is not the main one: "sparsecore".
    """

    name: str
    ops: tuple[Op, ...]
    thread: str = ""

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        """Its operations by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def root(self) -> Op:
        """The operation whose result is the computation's."""
        return next((op for op in self.ops if op.is_root), self.ops[-1])

    @cached_property
    def parameters(self) -> Mapping[int, Op]:
        """Its parameters by number."""
        return {int(op.operands[0]): op for op in self.ops if op.opcode == "parameter"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A module's computations.

    Attributes:
        name: of the module.
        scheduled: whether the text says that its operations stand in the order of their schedule.
        partitions: devices that it is split over.
        replicas: copies of it.
        computations: by name.
        entry: name of the one that runs.
        frames: stack frames by number: "file.py:line function", innermost first.
        unknown: what was not understood, counted: opcodes, custom calls, lines.
    """

    name: str
    scheduled: bool
    partitions: int
    replicas: int
    computations: Mapping[str, Computation]
    entry: str
    frames: Mapping[int, tuple[str, ...]]
    unknown: Counter[str]

    @property
    def main(self) -> Computation:
        """The computation that runs."""
        return self.computations[self.entry]

    @property
    def devices(self) -> int:
        """Devices that run it together."""
        return self.partitions * self.replicas

    def ops(self) -> Iterator[Op]:
        """Every operation of every computation, as written."""
        for computation in self.computations.values():
            yield from computation.ops

    def called_by(self, op: Op) -> Iterator[Computation]:
        """The computations that an operation calls, as far as they are there."""
        for name in op.called:
            if name in self.computations:
                yield self.computations[name]

    def source(self, op: Op) -> str:
        """Where in the source it comes from, "file.py:12 function"; "" where that is not said."""
        stack = self.frames.get(op.frame)
        if stack:
            return stack[0]
        metadata = op.attributes.get("metadata", "")
        file, line = _FILE.search(metadata), _LINE.search(metadata)
        return f"{file.group(1)}:{line.group(1)}" if file and line else ""

    def op_name(self, op: Op) -> str:
        """The model's name of an operation; of a fusion without one, that of its insides."""
        if op.op_name or op.base not in {"fusion", "call", "async", "while"}:
            return op.op_name
        for inner in self.called_by(op):
            named = [each.op_name for each in (inner.root, *reversed(inner.ops)) if each.op_name]
            if named:
                return named[0]
        return ""
