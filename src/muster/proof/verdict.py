"""The verdict: does the compiled step fit, and is it the step that the plan predicted.

Everything of the compiler is beside the plan's own prediction, so that a reader sees how far the
two are apart: memory by what can be told apart, FLOPs with loops multiplied out, collectives, time.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun
from muster.proof.compiler import Compilation
from muster.proof.expected import AxesTraffic, compared, expected_traffic
from muster.proof.findings import Finding, refused_options
from muster.proof.hlo import parse
from muster.proof.memory import MemoryVerdict, memory_verdict, predicted_memory
from muster.proof.reading import CollectiveVerdict, costliest_json, read_program
from muster.proof.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the compiler makes of a plan.

    Attributes:
        planned: the plan.
        compilation: what came of compiling it.
        memory: None where the compiler gave no count.
        compiled_flops: of one device and step, matmuls and kernels, loops multiplied out.
        predicted_flops: the plan's: every matmul, causal, with what is computed again.
        traffic: the program's collectives beside those that the plan expects, by mesh axes.
        step_seconds: of the timeline; None where there is no program.
    """

    planned: PlannedRun
    compilation: Compilation
    memory: MemoryVerdict | None
    compiled_flops: float
    predicted_flops: float
    collectives: tuple[CollectiveVerdict, ...]
    traffic: tuple[AxesTraffic, ...]
    compute_cycles: int
    compute_seconds: float
    timeline: Timeline | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the step compiles and its memory suffices."""
        return self.memory is not None and self.memory.fits

    @property
    def step_seconds(self) -> float | None:
        """Predicted from the compiled program."""
        return self.timeline.seconds if self.timeline else None

    @property
    def mfu(self) -> float | None:
        """6N FLOPs at the peak over the step that the program is predicted to take."""
        if self.timeline is None:
            return None
        return self.planned.mfu * self.planned.step_seconds / self.timeline.seconds

    def to_json(self) -> dict[str, Any]:
        """The answer of `muster verify --json`."""
        done = self.compilation
        memory = self.memory.to_json() if self.memory else _needed(self.planned, done)
        return {
            "muster": 1,
            "fits": self.fits,
            "passes": self.fits,
            "status": done.status,
            "message": done.message,
            "plan": dict(self.planned.document),
            "compiler": {
                **done.versions,
                "flags": dict(done.options),
                "refused": list(done.refused),
            },
            "memory_per_chip": memory,
            "flops_per_step_per_chip": {
                "compiled": self.compiled_flops,
                "predicted": self.predicted_flops,
            },
            "collectives": [asdict(each) for each in self.collectives],
            "traffic": [each.to_json() for each in self.traffic],
            "compute_cycles": self.compute_cycles,
            "compute_seconds": self.compute_seconds,
            "step_seconds": self.step_seconds,
            "predicted_step_seconds": self.planned.step_seconds,
            "mfu": self.mfu,
            "exposed_communication_seconds": (
                self.timeline.exposed_communication if self.timeline else None
            ),
            "costliest": costliest_json(self.timeline) if self.timeline else [],
            "findings": [asdict(each) for each in self.findings],
            "notes": list(self.notes),
            "compile_seconds": done.compile_seconds,
            "peak_rss_bytes": done.peak_rss_bytes,
        }


def judge(planned: PlannedRun, compilation: Compilation) -> Verdict:
    """Read what a compilation gave, beside its plan.

    Raises:
        BadInput: there is no such step to compile.
    """
    if compilation.status == "bad_input":
        raise BadInput(compilation.message)
    notes = (compilation.note,) if compilation.note else ()
    if compilation.text is None:
        return Verdict(
            planned=planned,
            compilation=compilation,
            memory=None,
            compiled_flops=0.0,
            predicted_flops=_predicted_flops(planned),
            collectives=(),
            traffic=(),
            compute_cycles=0,
            compute_seconds=0.0,
            timeline=None,
            findings=tuple(refused_options(compilation.refused)),
            notes=notes,
        )
    assert compilation.memory is not None, "what is compiled has been counted"
    program = parse(compilation.text.read_text("utf-8"))
    memory = memory_verdict(planned, compilation.memory, program)
    reading = read_program(
        program,
        planned.cluster,
        mesh=compilation.mesh,
        coordinates=compilation.coordinates,
        planned=planned,
        memory=memory,
        refused=compilation.refused,
    )
    timeline = reading.timeline
    return Verdict(
        planned=planned,
        compilation=compilation,
        memory=memory,
        compiled_flops=reading.flops,
        predicted_flops=_predicted_flops(planned),
        collectives=reading.collectives,
        traffic=compared(expected_traffic(planned, compilation.mesh), reading.collectives),
        compute_cycles=reading.cycles.compute,
        compute_seconds=reading.compute_seconds,
        timeline=timeline,
        findings=reading.findings,
        notes=(*notes, *reading.notes),
    )


def _predicted_flops(planned: PlannedRun) -> float:
    estimate = planned.document.get("estimate")
    parts: Mapping[str, Any] = estimate if isinstance(estimate, Mapping) else {}
    tokens = planned.workload.batch_tokens / planned.layout.chips_used
    devices = planned.cluster.chip.devices_per_chip
    each = float(parts.get("flops_per_token_causal", planned.flops_per_token))
    again = float(parts.get("flops_per_token_recomputed", 0.0))
    return (each + again) * tokens / devices


def _needed(planned: PlannedRun, compilation: Compilation) -> dict[str, Any]:
    """What a compiler that refused said of memory."""
    if compilation.status != "too_large":
        return {}
    return {
        "total": compilation.needed,
        "usable": compilation.usable,
        "space": compilation.space,
        "predicted_total": predicted_memory(planned).get("total"),
    }
