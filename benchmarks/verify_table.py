"""Verify the plans that `muster plan` prints for LLaMA-3 on TPU slices, and print a table.

    uv run --extra tpu python benchmarks/verify_table.py [--only NAME ...] [--write PAGE]

Each case is planned as a user would (nothing is given but the hardware and the batch), compiled by
the TPU compiler in a process of its own, and judged. Programs are kept where `muster verify` keeps
them, so a second run prints at once what has not changed. What MaxText's own step comes to on the
two set-ups of the 70B stands beside, from its compiled programs.

Columns: compiler's cycles in ms at the chip's clock (kernels left out), predicted step of the plan
and of the program, communication that no work hides, the plan's memory beside the compiler's, the
seconds and memory that tracing and compiling took (on a busy machine they are longer).
"""

import argparse
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from muster.errors import MusterError
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan_file import planned_run
from muster.planner.workload import make_workload
from muster.proof.compiler import compile_plan, versions
from muster.proof.verdict import Verdict, judge
from muster.units import parse_batch


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model on a slice, with a batch of sequences of 4096 tokens."""

    model: str
    hardware: str
    sequences: int
    maxtext_ms: float | None = None

    @property
    def name(self) -> str:
        """Short, to choose it by."""
        return f"{self.model}/{self.hardware}/{self.sequences}"


# 512 tokens a chip on 8192 chips, as the 70B with 1024 sequences has; 4096 tokens on the others.
# MaxText 0.2.5's cycles: its best of three remat policies with its default flags, summed from its
# compiled programs before there was a plan to compare; maxtext_cycles.toml has later ones.
CASES = (
    Case(model="llama-3-70b", hardware="v5p:16x16x32", sequences=1024, maxtext_ms=929),
    Case(model="llama-3-70b", hardware="v5p:4x4x4", sequences=64, maxtext_ms=5324),
    Case(model="llama-3-8b", hardware="v5p:4x4x4", sequences=64),
    Case(model="llama-3-8b", hardware="v5p:8x8x8", sequences=512),
    Case(model="llama-3-8b", hardware="v5p:16x16x32", sequences=8192),
    Case(model="llama-3-70b", hardware="v5p:8x8x8", sequences=512),
    Case(model="llama-3.1-405b", hardware="v5p:8x8x8", sequences=512),
    Case(model="llama-3.1-405b", hardware="v5p:16x16x32", sequences=1024),
    Case(model="llama-3-70b", hardware="v5e:16x16", sequences=256),
    Case(model="llama-3-70b", hardware="v6e:16x16", sequences=256),
    Case(model="llama-3-70b", hardware="v7x:4x4x4", sequences=64),
    Case(model="llama-3-70b", hardware="4xv5p:8x8x8", sequences=2048),
    Case(model="llama-3.1-405b", hardware="8xv5p:8x8x8", sequences=2048),
    Case(model="llama-3-70b", hardware="v5p:2x2x1", sequences=4),
)
HEAD = (
    "model", "hardware", "sequences", "layout", "cycles ms", "MaxText ms", "plan s", "program s",
    "exposed s", "MFU", "plan GB", "compiler GB", "of", "verdict", "seconds", "child GB",
)  # fmt: skip


def main() -> None:
    """Verify every case, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", help="names, as model/hardware/sequences")
    parser.add_argument("--write", type=Path, help="the page to write")
    chosen = parser.parse_args()
    cases = [case for case in CASES if not chosen.only or case.name in chosen.only]
    rows = []
    for case in cases:
        print(f"{case.name} ...", flush=True)
        row = row_of(case)
        rows.append(row)
        print("  " + "; ".join(f"{key} {value}" for key, value in zip(HEAD, row, strict=True)))
    text = "\n".join(page(rows))
    print(text)
    if chosen.write:
        chosen.write.write_text(text + "\n", "utf-8")


def row_of(case: Case) -> tuple[str, ...]:
    """Plan, compile and judge one case."""
    architecture, cluster = find_model(case.model), parse_cluster(case.hardware)
    workload = make_workload(
        architecture, parse_batch(f"{case.sequences}seq"), sequence_length=4096
    )
    try:
        plan = make_plan(architecture, cluster, workload)
        planned = planned_run(plan.to_json(), where=case.name)
        verdict = judge(planned, compile_plan(planned))
    except MusterError as error:
        return (case.model, case.hardware, str(case.sequences), str(error), *[""] * 12)
    return tuple(_cells(case, verdict))


def _cells(case: Case, verdict: Verdict) -> Iterator[str]:
    done, memory, planned = verdict.compilation, verdict.memory, verdict.planned
    clock = planned.cluster.chip.fact("core.clock_hz")
    assert clock is not None
    assert isinstance(clock.value, float | int)
    yield from (case.model, case.hardware, str(case.sequences))
    parts = planned.layout.microbatches
    several = f", {parts} microbatches" if parts > 1 else ""
    yield f"{planned.layout}, remat {planned.remat.value}{several}"
    yield f"{verdict.compute_cycles / clock.value * 1e3:,.0f}" if verdict.timeline else "-"
    yield f"{case.maxtext_ms:,.0f}" if case.maxtext_ms else "-"
    yield f"{planned.step_seconds:.3f}"
    yield f"{verdict.timeline.seconds:.3f}" if verdict.timeline else "-"
    yield f"{verdict.timeline.exposed_communication:.3f}" if verdict.timeline else "-"
    yield f"{verdict.mfu:.1%}" if verdict.mfu is not None else "-"
    predicted = memory.predicted_total if memory else _predicted(verdict)
    yield f"{predicted / 1e9:.1f}"
    compiled = memory.total if memory else done.needed
    yield f"{compiled / 1e9:.1f}"
    yield f"{(memory.usable if memory else done.usable) / 1e9:.1f}"
    yield "passes" if verdict.fits else f"no: {done.message or 'does not fit'}"[:60]
    yield f"{done.trace_seconds + done.compile_seconds:.0f}" if done.text else "-"
    yield f"{done.peak_rss_bytes / 1e9:.1f}"


def _predicted(verdict: Verdict) -> float:
    estimate = verdict.planned.document.get("estimate")
    memory = estimate.get("memory_per_chip", {}) if isinstance(estimate, dict) else {}
    return float(memory.get("total", 0.0)) / verdict.planned.cluster.chip.devices_per_chip


def page(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """The table in Markdown."""
    yield "# The plans that `muster plan` prints, as the TPU compiler sees them"
    yield ""
    named = ", ".join(f"{name} {number}" for name, number in versions().items())
    yield f"{time.strftime('%Y-%m-%d')}, {named}; {os.cpu_count()} cores, {platform.machine()}."
    yield "Made by `uv run --extra tpu python benchmarks/verify_table.py --write ...`; sequences"
    yield "of 4096 tokens. Memory is the compiled program's, of one device; cycles are the"
    yield "compiler's estimates without attention kernels; steps are walks through schedules that"
    yield "no chip ran. MaxText 0.2.5: cycles of its best of three remat policies with its default"
    yield "flags, as first summed, for two set-ups; tuned-plans.md has its fewest, with muster's"
    yield "flags, for more. Exposed: communication that no work"
    yield "hides. Of: usable GB of one device (a chip of v7x has two, and `muster plan` counts"
    yield "chips). Seconds, child GB: time and memory of compiling, beside other work here."
    yield ""
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + " --- |" * len(HEAD)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"


if __name__ == "__main__":
    main()
