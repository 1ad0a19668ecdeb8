"""One question to the compiler, and what its program comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun
from muster.proof.child import Progress
from muster.proof.compiler import (
    Compilation,
    compile_with_known_options,
    kept_with_known_options,
)
from muster.proof.hlo import compute_cycles, parse
from muster.proof.memory import memory_verdict
from muster.proof.simulate import rates_of
from muster.proof.sound import Status
from muster.proof.timeline import time_program


@dataclass(frozen=True, kw_only=True)
class Question:
    """A step to compile.

    Attributes:
        planned: a plan with its own compiler options and step choices.
    """

    planned: PlannedRun


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One step of one device, read from the program that the compiler scheduled.

    Attributes:
        step_seconds: a walk through the schedule; what candidates are compared by.
        cycles: the compiler's own, without kernels and collectives.
        cycles_seconds: the same at the chip's clock.
        kernel_seconds: attention kernels, by their shapes.
        exposed_seconds: collectives that no work hides.
        memory_bytes: the compiler's count of one device.
        temporaries_bytes: of these, what lives within a step.
        usable_bytes: what there is.
    """

    step_seconds: float
    cycles: int
    cycles_seconds: float
    kernel_seconds: float
    exposed_seconds: float
    memory_bytes: int
    temporaries_bytes: int
    usable_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.usable_bytes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a question.

    Attributes:
        status: of the compilation.
        reading: None unless it compiled.
        message: what went wrong, one line.
        needed_bytes: of HBM, where that is known; 0 where not.
        refused: options that the compiler did not take, as name=value.
        kept: whether it was found among results kept before.
        seconds: that tracing and compiling took, when it was compiled.
        peak_rss_bytes: the most memory that the child process held.
        note: what the user should know of how it was kept; empty for nothing.
        machines_fault: whether the compiler was never asked, or its answer was lost, for a reason
            that lies in this machine.
    """

    status: Status
    reading: Reading | None = None
    message: str = ""
    needed_bytes: int = 0
    refused: tuple[str, ...] = ()
    kept: bool = False
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    versions: Mapping[str, str] | None = None
    note: str = ""
    machines_fault: bool = False

    @property
    def fits(self) -> bool:
        """Whether it compiled and its memory suffices."""
        return self.reading is not None and self.reading.fits

    @property
    def step_seconds(self) -> float | None:
        """Of a program that fits."""
        return self.reading.step_seconds if self.reading and self.reading.fits else None


def ask_compiler(question: Question, progress: Progress) -> Answer:
    """Compile a step in a child process and read its program.

    What goes wrong on this machine, as a full disk, is an answer too: it is of one trial, and must
    not take the others with it.

    Raises:
        BadInput: the plan is not for TPUs, or the compiler is not installed.
    """
    try:
        done = compile_with_known_options(question.planned, {}, progress=progress)
        return answer_of(question.planned, done)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        message = f"the step cannot be compiled here: {said}"
        return Answer(status="died", message=message, machines_fault=True)


def find_kept(question: Question) -> Answer | None:
    """What is kept of a question; None where the compiler would have to work.

    Raises:
        BadInput: as `ask_compiler`.
    """
    try:
        found = kept_with_known_options(question.planned)
        return None if found is None else answer_of(question.planned, found)
    except OSError:  # another process removed it between two looks
        return None


def answer_of(planned: PlannedRun, done: Compilation) -> Answer:
    """Read what a compilation gave; a program that cannot be read is as one that did not come.

    Raises:
        OSError: the program is not where it was.
    """
    reading: Reading | None = None
    try:
        reading = _read(planned, done) if done.text is not None else None
    except (BadInput, ValueError, RecursionError) as error:
        said = str(error) or type(error).__name__
        done = replace(done, status="died", message=f"its program cannot be read: {said}")
    in_hbm = done.status == "too_large" and done.space in {"", "hbm"}
    return Answer(
        status=done.status,
        reading=reading,
        message=done.message,
        needed_bytes=reading.memory_bytes if reading else done.needed if in_hbm else 0,
        refused=done.refused,
        kept=done.kept,
        seconds=done.trace_seconds + done.compile_seconds,
        peak_rss_bytes=done.peak_rss_bytes,
        versions=done.versions,
        note=done.note,
    )


def _read(planned: PlannedRun, done: Compilation) -> Reading:
    assert done.text is not None
    assert done.memory is not None, "what is compiled has been counted"
    program = parse(done.text.read_text("utf-8"))
    timeline = time_program(program, planned.cluster, mesh=done.mesh, coordinates=done.coordinates)
    memory = memory_verdict(planned, done.memory, None)
    cycles = compute_cycles(program).compute
    return Reading(
        step_seconds=timeline.seconds,
        cycles=cycles,
        cycles_seconds=cycles / rates_of(planned.cluster.chip).clock,
        kernel_seconds=timeline.of_kind("kernel"),
        exposed_seconds=timeline.exposed_communication,
        memory_bytes=memory.total,
        temporaries_bytes=done.memory.temporaries,
        usable_bytes=memory.usable,
    )


def reading_json(reading: Reading) -> dict[str, Any]:
    """A reading as `muster tune --json` has it."""
    return {**vars(reading), "fits": reading.fits}
