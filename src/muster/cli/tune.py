"""`muster tune`: the TPU compiler chooses among the planner's best, and what no formula sees."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.ending import ended_once, undisturbed
from muster.cli.files import check_outputs, write_option
from muster.cli.options import JSON, Strict
from muster.cli.tune_progress import Shown
from muster.errors import BadInput, shorten
from muster.models.hf_config import printable

if TYPE_CHECKING:
    from muster.tune.jobs import Budget
    from muster.tune.search import Tuning

DOES_NOT_FIT, INTERRUPTED = 1, 130
USUAL_BUDGET, USUAL_JOBS = "20m", 2
MOST_BUDGET_SECONDS = 30 * 24 * 3600
_UNITS = {"s": 1, "m": 60, "h": 3600}


@click.command(cls=Strict)
@click.argument("plan", metavar="plan.json", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the best plan here, with its step choices and compiler options.",
)
@click.option(
    "--budget",
    default=USUAL_BUDGET,
    metavar="TIME",
    help="Time to compile in, as 90s, 20m or 1h (20m). What is kept of earlier runs is free.",
)
@click.option(
    "--jobs",
    metavar="N",
    help="Compilations at once, up to the number of cores (2); fewer where memory is short.",
)
@click.option(
    "--list-flags",
    is_flag=True,
    help="Print the compiler options that are tried, what each does and where it is from.",
)
@JSON
def tune(
    plan: Path | None,
    out: Path | None,
    budget: str,
    jobs: str | None,
    list_flags: bool,
    as_json: bool,
) -> int:
    """Let the TPU compiler choose layout, step choices and flags for a plan; no TPU is needed.

    The planner's best layouts are compiled first, then each choice alone on the best of them, then
    those that gained together. Exit status 0: the best is printed, be it the plan itself; 1:
    nothing fits. Ctrl-C, SIGTERM and SIGHUP print and write the best so far (130).

    Every result is kept in the user's cache folder (muster/proof), so a second run goes on where
    the first ended.
    """
    from muster.planner.plan_file import read_plan
    from muster.tune.jobs import Budget, Jobs
    from muster.tune.search import tune as search
    from muster.tune.trial import ask_compiler, find_kept

    if list_flags:
        _list_flags(as_json=as_json)
        return 0
    if plan is None:
        raise BadInput("tune needs a plan: muster tune plan.json; `muster plan --out` writes one")
    check_outputs({"--out": out}, [("the plan itself", plan)])
    spending = Budget(seconds=read_budget(budget))
    most = read_jobs(jobs)
    planned = read_plan(plan)
    with ended_once(), Shown(spending, silent=as_json) as screen:
        asking = Jobs(ask_compiler, find_kept, most=most, budget=spending, told=screen.told)
        tuning = search(planned, asking, seen=screen.seen)
    try:
        _show(tuning, spending, as_json=as_json)
    finally:  # whoever reads the answer may have gone: the file is written all the same
        if out is not None:
            with undisturbed():
                _write(tuning, out)
    if tuning.interrupted:
        return INTERRUPTED
    return 0 if tuning.best is not None else DOES_NOT_FIT


def read_budget(text: str) -> float:
    """Read a time, as 90s, 20m or 1h.

    Raises:
        BadInput: it is none, or more than 30 days.

    >>> read_budget("90s"), read_budget("20m"), read_budget("1.5h")
    (90.0, 1200.0, 5400.0)
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smh])", text.strip().lower(), re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not seconds:
        raise BadInput(f"--budget {shorten(text)} is not a time; write it like 90s, 20m or 1h")
    if seconds > MOST_BUDGET_SECONDS:
        raise BadInput(f"--budget {shorten(text)} is too long; the longest is 720h")
    return seconds


def read_jobs(text: str | None) -> int:
    """Read how many compilations may run at once.

    Raises:
        BadInput: not a number from 1 to that of the cores.
    """
    cores = os.cpu_count() or 1
    if text is None:
        return min(USUAL_JOBS, cores)
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII) or not 1 <= int(text) <= cores:
        raise BadInput(
            f"--jobs {shorten(text)} is not a number from 1 to this machine's {cores} cores"
        )
    return int(text)


def _list_flags(*, as_json: bool) -> None:
    if as_json:
        from muster.tune.flags import options

        document = {"muster": 1, "flags": [vars(each) for each in options()]}
        click.echo(json.dumps(document, indent=1))
        return
    from muster.report.tune_report import print_flags

    print_flags()


def _show(tuning: "Tuning", budget: "Budget", *, as_json: bool) -> None:
    if as_json:
        from muster.tune.outcome import to_json

        document = to_json(tuning, budget_seconds=budget.seconds, spent_seconds=budget.spent)
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    from muster.report.tune_report import print_tuning
    from muster.units import format_seconds

    kept = sum(each.answer.kept for each in tuning.trials)
    spent = f"{len(tuning.trials)} compiled in {format_seconds(budget.spent)}"
    if kept:
        spent = f"{len(tuning.trials)} read, {kept} of them found compiled; "
        spent += f"{format_seconds(budget.spent)} of compiling"
    print_tuning(tuning, spent=spent)


def _write(tuning: "Tuning", path: Path) -> None:
    from muster.tune.outcome import winning_document

    document = winning_document(tuning)
    if document is None:
        why = "nothing fits" if tuning.trials else "nothing was compiled"
        click.echo(f"muster: {why}, so {printable(path)} is not written", err=True)
        return
    write_option("--out", path, json.dumps(document, indent=1) + "\n")
