"""`muster plan`: how to train a model on a slice, and why."""

import json
import tempfile
from pathlib import Path

import click

from muster.cli.options import CONSTANTS, JSON
from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import DEFAULT_MFU, make_plan
from muster.planner.workload import make_workload
from muster.roofline.remat import parse_remat
from muster.units import parse_batch, parse_count

DOES_NOT_FIT = 1


@click.command()
@click.argument("model")
@click.option("--on", "hardware", required=True, metavar="HARDWARE", help="v5p:16x20x28, h100:1024")
@click.option("--batch", required=True, metavar="TOKENS", help="Global batch: 4M (Mi), 1024seq.")
@click.option("--seq", metavar="N", help="Sequence length.  [default: 4096 or the model's context]")
@click.option("--tokens", metavar="N", help="Tokens of the whole run: 15T (1e12).")
@click.option(
    "--mfu", default=str(DEFAULT_MFU), metavar="F", help="MFU to assume, 6N.  [default: 0.4]"
)
@click.option(
    "--remat", metavar="POLICY", help="Recomputation: none, minimal, outputs, full, offload."
)
@click.option("--param-dtype", default="bf16", show_default=True, metavar="DTYPE")
@click.option("--optimizer-dtype", default="f32", show_default=True, metavar="DTYPE")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write plan.json here."
)
@CONSTANTS
@JSON
def plan(
    model: str,
    hardware: str,
    batch: str,
    seq: str | None,
    tokens: str | None,
    mfu: str,
    remat: str | None,
    param_dtype: str,
    optimizer_dtype: str,
    out: Path | None,
    constants: str,
    as_json: bool,
) -> int:
    """Plan the training of MODEL (a catalogue name, a config.json, a Hub id) on HARDWARE.

    Exit status 1 says that the model does not fit.
    """
    architecture = find_model(model)
    cluster = parse_cluster(hardware, constants=constants)
    workload = make_workload(
        architecture,
        parse_batch(batch),
        sequence_length=parse_count(seq, "--seq", binary=True) if seq else None,
        train_tokens=parse_count(tokens, "--tokens") if tokens else None,
        param_dtype=param_dtype,
        optimizer_dtype=optimizer_dtype,
        remat=parse_remat(remat).value if remat else None,
    )
    answer = make_plan(architecture, cluster, workload, mfu=_fraction(mfu))
    document = json.dumps(answer.to_json(), indent=1) if out or as_json else ""
    if out:
        _write(out, document + "\n")
    if as_json:
        click.echo(document)
    else:
        from muster.report.plan_report import print_plan

        print_plan(answer, written_to=out)
    return 0 if answer.fits else DOES_NOT_FIT


def _fraction(text: str) -> float:
    percent = text.strip().endswith("%")
    try:
        number = float(text.strip().rstrip("%"))
    except ValueError:
        raise BadInput(f"--mfu {text!r} is not a number; write 0.4 or 40%") from None
    return number / 100 if percent else number


def _write(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as stream:
            stream.write(content)
        try:
            Path(stream.name).replace(path)
        except OSError:
            Path(stream.name).unlink()
            raise
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None
