"""`muster validate`: predictions against published, measured runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import JSON
from muster.errors import UnknownName

if TYPE_CHECKING:
    from muster.validation.runs import Run


@click.command()
@click.option(
    "--runs",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Measured runs with the columns of muster's own.  [default: those]",
)
@click.option("--all", "incomplete", is_flag=True, help="Also rows not marked complete.")
@click.option("--source", metavar="NAME", help="Only rows of one source group: torchtitan.")
@click.option("--hardware", metavar="NAME", help="Only rows of one kind of hardware: v5p, h100.")
@JSON
def validate(
    file: Path | None,
    incomplete: bool,
    source: str | None,
    hardware: str | None,
    as_json: bool,
) -> int:
    """Predict published, measured runs and print how far off the predictions are.

    An error is predicted over measured step time, less one. Exit status 0, however large they are.
    """
    from muster.validation.predict import predict_setup
    from muster.validation.runs import load_runs
    from muster.validation.score import score_runs

    runs = _only_hardware(_only_source(load_runs(file), source), hardware)
    scores = score_runs(runs, predict_setup, incomplete=incomplete)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in scores.rows], indent=1))
    else:
        from muster.report.validation_table import print_validation

        print_validation(scores)
    return 0


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
