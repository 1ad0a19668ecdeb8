"""`muster validate`: predictions against published, measured runs."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import JSON, Strict
from muster.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from muster.validation.against_search import Progress
    from muster.validation.groups import Group
    from muster.validation.runs import Run

SAMPLE = 40  # layouts that are searched unless told otherwise


@click.command(cls=Strict)
@click.option(
    "--runs",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Measured runs with the columns of muster's own.  [default: those]",
)
@click.option("--memory", is_flag=True, help="Memory, where it was published, term by term.")
@click.option("--layouts", is_flag=True, help="Where published layouts rank in the search.")
@click.option("--all", "every", is_flag=True, help="Also incomplete rows; all layouts.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many layouts to search, chosen by hash.  [default: 40, some 20 s]",
)
@click.option("--source", metavar="NAME", help="Only rows of one source group: torchtitan.")
@click.option("--hardware", metavar="NAME", help="Only rows of one kind of hardware: v5p, h100.")
@JSON
def validate(
    file: Path | None,
    memory: bool,
    layouts: bool,
    every: bool,
    sample: int | None,
    source: str | None,
    hardware: str | None,
    as_json: bool,
) -> int:
    """Predict published, measured runs and print how far off the predictions are.

    An error is predicted over measured step time, less one. Exit status 0, however large they are.
    """
    from muster.validation.runs import load_runs

    if memory and layouts:
        raise BadInput("--memory and --layouts are two questions; ask one")
    if sample is not None and (every or not layouts):
        raise BadInput("--sample N chooses among --layouts, and not together with --all")
    runs = _only_hardware(_only_source(load_runs(file), source), hardware)
    if memory:
        _memory(runs, every, as_json)
    elif layouts:
        _layouts(runs, None if every else sample or SAMPLE, as_json)
    else:
        _step_times(runs, every, as_json)
    return 0


def _step_times(runs: "tuple[Run, ...]", incomplete: bool, as_json: bool) -> None:
    from muster.validation.predict import predict_setup
    from muster.validation.score import score_runs

    scores = score_runs(runs, predict_setup, incomplete=incomplete)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in scores.rows], indent=1))
        return
    from muster.report.validation_table import print_validation

    print_validation(scores)


def _memory(runs: "tuple[Run, ...]", incomplete: bool, as_json: bool) -> None:
    from muster.validation.memory import memory_rows, score_memory

    scores = score_memory(runs, incomplete=incomplete)
    if as_json:
        click.echo(json.dumps(memory_rows(scores), indent=1))
        return
    from muster.report.validation_memory import print_memory

    print_memory(scores)


def _layouts(runs: "tuple[Run, ...]", size: int | None, as_json: bool) -> None:
    from muster.validation.against_search import half_precision_groups, rank_layouts, sample
    from muster.validation.ranks import rank_json, unranked_json

    groups = half_precision_groups(runs)
    ranks, unranked = rank_layouts(sample(groups, size), groups, _progress())
    if as_json:
        rows = [*map(rank_json, ranks), *map(unranked_json, unranked)]
        click.echo(json.dumps(rows, indent=1))
        return
    from muster.report.validation_layouts import print_layouts

    print_layouts(ranks, unranked, len(groups))


def _progress() -> "Progress | None":
    """Says on a terminal's standard error which set-up is searched."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, group: "Group | None") -> None:
        words = f"{done}/{total}  {group.setups[0].id}" if group else ""
        click.echo(f"\r\x1b[2K{words}", nl=False, err=True)

    return show


def _only_source(runs: "tuple[Run, ...]", name: str | None) -> "tuple[Run, ...]":
    if name is None:
        return runs
    groups = sorted({run.source_group for run in runs if run.source_group})
    if name.lower() not in groups:
        raise UnknownName("source", name, groups)
    return tuple(run for run in runs if run.source_group == name.lower())


def _only_hardware(runs: "tuple[Run, ...]", name: str | None) -> "tuple[Run, ...]":
    """Rows of a hardware by its own name in the file, or by the chip that it is."""
    if name is None:
        return runs
    from muster.validation.clusters import chip_id

    wanted = chip_id(name) or name.lower()
    chosen = tuple(
        run
        for run in runs
        if run.hardware.lower() == name.lower() or chip_id(run.hardware) == wanted
    )
    if not chosen:
        names = sorted({run.hardware.lower() for run in runs if run.hardware})
        raise UnknownName("hardware of a run", name, names)
    return chosen
