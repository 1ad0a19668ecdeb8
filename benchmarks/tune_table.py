"""Tune the set-ups of LLaMA-3 on TPU slices that docs/tuned-plans.md lists, and print the table.

    uv run --extra tpu python benchmarks/tune_table.py [--only NAME ...] [--budget 1h] [--jobs 2]
        [--plans FOLDER] [--write docs/tuned-plans.md]

Each set-up is planned as a user would and tuned with `muster tune`'s own search. Results are kept
where `muster verify` keeps them: a second run goes on where the first ended, and with a budget of
1s prints what is known. MaxText's own step, read the same way, is from maxtext_cycles.toml.
"""

import argparse
import json
import os
import platform
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from verify_table import CASES, Case  # a script beside this one

from muster.cli.tune import read_budget, read_jobs
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan_file import PlannedRun, planned_run
from muster.planner.workload import make_workload
from muster.proof.compiler import compile_with_known_options, versions
from muster.proof.published import how_far_off
from muster.proof.verdict import judge
from muster.tune.jobs import Budget, Jobs
from muster.tune.outcome import named, winning_document
from muster.tune.search import Trial, Tuning, tune
from muster.tune.trial import Reading, ask_compiler, find_kept
from muster.units import parse_batch

MAXTEXT = Path(__file__).parent / "maxtext_cycles.toml"
# Of verify_table's cases those that the table is about.
NAMES = (
    "llama-3-70b/v5p:16x16x32/1024",
    "llama-3-70b/v5p:4x4x4/64",
    "llama-3-8b/v5p:4x4x4/64",
    "llama-3.1-405b/v5p:8x8x8/512",
    "llama-3.1-405b/v5p:16x16x32/1024",
    "llama-3-70b/v6e:16x16/256",
    "llama-3-70b/v7x:4x4x4/64",
    "llama-3-70b/4xv5p:8x8x8/2048",
)
HEAD = (
    "model", "hardware", "sequences", "step", "limit ms", "cycles ms", "step s", "waits s", "MFU",
    "temporaries GB",
)  # fmt: skip


LEGEND = """\
Limit: 6 FLOPs a parameter and token at the chips' peak. Cycles: the compiler's estimates at the
chip's clock, without attention kernels. Step: a walk through the schedule, with kernels and
communication; waits are for collectives that no work hides. MFU: 6N, of that step. MaxText 0.2.5:
its own step, compiled and read the same way, with the settings of fewest cycles of those in
`benchmarks/maxtext_cycles.toml`: a few policies and flags each, not a search. Its flags are the
compiler's defaults, those of its recipe, or muster's (vector memory, gathers on the SparseCores).
On 8192 chips its mesh splits axes of the torus, so its step there is no measure.
Where no line says "tuned", the plan is what stands: nothing else was tried, or nothing gained.
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What tuning made of one set-up.

    Attributes:
        limit_seconds: 6 FLOPs a parameter and token, at the chips' peak.
        between_slices: seconds of collectives between slices, and those that nothing hides.
    """

    case: Case
    tuning: Tuning
    limit_seconds: float
    spent_seconds: float
    between_slices: tuple[float, float] | None


def main() -> None:
    """Tune every set-up, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", help="names, as model/hardware/sequences")
    parser.add_argument("--budget", default="1h", help="of each set-up")
    parser.add_argument("--jobs", help="compilations at once")
    parser.add_argument("--plans", type=Path, help="a folder for the tuned plans")
    parser.add_argument("--write", type=Path, help="the page to write")
    asked = parser.parse_args()
    rows = []
    for case in CASES:
        if case.name not in (asked.only or NAMES):
            continue
        print(f"{case.name} ...", flush=True)
        rows.append(row_of(case, read_budget(asked.budget), read_jobs(asked.jobs)))
        document = winning_document(rows[-1].tuning)
        if asked.plans and document is not None:
            path = asked.plans / f"{case.name.replace('/', '-').replace(':', '-')}.json"
            path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        text = "\n".join(page(rows)) + "\n"
        if asked.write:
            asked.write.write_text(text, "utf-8")
    print("\n".join(page(rows)))


def row_of(case: Case, budget_seconds: float, most: int) -> Row:
    """Plan and tune one set-up."""
    architecture, cluster = find_model(case.model), parse_cluster(case.hardware)
    workload = make_workload(
        architecture, parse_batch(f"{case.sequences}seq"), sequence_length=4096
    )
    planned = planned_run(make_plan(architecture, cluster, workload).to_json(), where=case.name)
    budget = Budget(seconds=budget_seconds)
    tuning = tune(planned, Jobs(ask_compiler, find_kept, most=most, budget=budget), seen=_say)
    if tuning.interrupted:
        raise KeyboardInterrupt
    best = tuning.best
    return Row(
        case=case,
        tuning=tuning,
        limit_seconds=planned.step_seconds * planned.mfu,
        spent_seconds=budget.spent,
        between_slices=_between_slices(best.planned) if best and cluster.slices > 1 else None,
    )


def _say(trial: Trial) -> None:
    seconds = "-" if trial.seconds is None else f"{trial.seconds:.4f} s"
    print(f"  {trial.rung}: {trial.what}: {seconds}", flush=True)


def _between_slices(planned: PlannedRun) -> tuple[float, float]:
    verdict = judge(planned, compile_with_known_options(planned, {}))
    between = [each for each in verdict.collectives if "slice" in each.axes]
    return sum(each.seconds for each in between), sum(each.exposed_seconds for each in between)


def maxtext(case: Case) -> dict[str, Any] | None:
    """MaxText's row of fewest cycles on a set-up; None where none compiled."""
    if not MAXTEXT.exists():
        return None
    rows = tomllib.loads(MAXTEXT.read_text("utf-8")).get("row", [])
    mine = (case.model, case.hardware, case.sequences)
    same = [
        row
        for row in rows
        if (row["model"], row["hardware"], row["sequences"]) == mine and "cycles_ms" in row
    ]
    return min(same, key=lambda row: row["cycles_ms"], default=None)


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The page in Markdown."""
    yield "# Tuned plans"
    yield ""
    named_versions = ", ".join(f"{name} {number}" for name, number in versions().items())
    yield "Made by `benchmarks/tune_table.py`; do not edit."
    yield f"{time.strftime('%Y-%m-%d')}, {named_versions}; {os.cpu_count()} cores,"
    yield f"{platform.machine()}. Sequences of 4096 tokens."
    yield ""
    yield LEGEND
    said = how_far_off()
    yield f"{said[:1].upper()}{said[1:]}."
    yield ""
    yield "| " + " | ".join(HEAD) + " |"
    yield "|---|---|--:|---|" + "--:|" * (len(HEAD) - 4)
    for row in rows:
        for cells in _cells(row):
            yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "## What each choice gained"
    for row in rows:
        yield ""
        yield f"### {row.case.model} on {row.case.hardware}, {row.case.sequences} sequences"
        yield ""
        yield from _tried(row)


def _cells(row: Row) -> Iterator[tuple[str, ...]]:
    case, tuning = row.case, row.tuning
    of = (case.model, case.hardware, str(case.sequences))
    limit = f"{1e3 * row.limit_seconds:,.0f}"
    first, best = tuning.first, tuning.best
    for name, trial in (("as planned", first), ("tuned", best if best is not first else None)):
        if trial is not None and trial.answer.reading is not None:
            layout = f"{name}: {named(trial)}"
            yield (*of, layout, limit, *_figures(trial.answer.reading, row.limit_seconds))
    if (other := maxtext(case)) is not None:
        step = other.get("step_ms")
        yield (
            *of,
            f"MaxText: remat {other['remat']}, {_whose(other['flags'])} flags",
            limit,
            f"{other['cycles_ms']:,.0f}",
            f"{step / 1e3:.3f}" if step else "-",
            f"{other['exposed_ms'] / 1e3:.3f}" if "exposed_ms" in other else "-",
            f"{1e3 * row.limit_seconds / step:.1%}" if step else "-",
            f"{other.get('temporaries_gb', '-')}",
        )
    elif case.maxtext_ms is not None:
        fewest = "MaxText: best of three remat policies"
        yield (*of, fewest, limit, f"{case.maxtext_ms:,.0f}", "-", "-", "-", "-")


def _whose(flags: Sequence[str]) -> str:
    if not flags:
        return "default"
    # No recipe of MaxText's scatters so.
    return "muster's" if any("nd_reduce_scatter" in flag for flag in flags) else "its recipe's"


def _figures(reading: Reading, limit: float) -> tuple[str, ...]:
    return (
        f"{1e3 * reading.cycles_seconds:,.0f}",
        f"{reading.step_seconds:.3f}",
        f"{reading.exposed_seconds:.3f}",
        f"{limit / reading.step_seconds:.1%}",
        f"{reading.temporaries_bytes / 1e9:.1f}",
    )


def _tried(row: Row) -> Iterator[str]:
    if row.between_slices is not None:
        total, exposed = row.between_slices
        yield f"Between slices: {total:.3f} s of collectives, of which {exposed:.3f} s show."
        yield ""
    yield "| rung | tried | step s | gain | cycles ms | waits s | GB |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for trial in row.tuning.trials:
        reading = trial.answer.reading
        if reading is None:
            yield f"| {trial.rung} | {trial.what} | {trial.answer.message[:80]} | | | | |"
            continue
        gain = "" if trial.gain is None else f"{trial.gain:+.1%}"
        what = trial.what + (" (not taken)" if trial.answer.refused else "")
        yield (
            f"| {trial.rung} | {what} | {reading.step_seconds:.3f} | {gain} "
            f"| {1e3 * reading.cycles_seconds:,.0f} | {reading.exposed_seconds:.3f} "
            f"| {reading.memory_bytes / 1e9:.1f} |"
        )


if __name__ == "__main__":
    main()
