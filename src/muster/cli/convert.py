"""`muster import` and `muster export`: between Hugging Face's safetensors and checkpoints."""

import json
from pathlib import Path

import click

from muster.cli.extras import needs_training
from muster.cli.notes import say_damaged
from muster.cli.options import JSON, Strict, step_number
from muster.cli.paths import NamedPath
from muster.errors import BadInput
from muster.models.hf_config import printable
from muster.units import format_bytes, format_count

DTYPES = ("float32", "bfloat16", "float16")


@click.command(name="import", cls=Strict)
@click.argument("source", metavar="DIR", type=NamedPath("folder"))
@click.option(
    "--out", required=True, type=NamedPath("folder"), metavar="CKPT", help="A new folder."
)
@click.option("--dtype", metavar="DTYPE", help="float32, bfloat16, float16.  [default: as stored]")
@JSON
@needs_training
def import_(source: Path, out: Path, dtype: str | None, as_json: bool) -> None:
    """Turn a Hugging Face folder of safetensors into a checkpoint to train or evaluate."""
    from muster.training.devices import start_single

    _check_dtype(dtype)
    if not source.is_dir():
        raise BadInput(f"no folder {source}; give one with config.json and safetensors")
    start_single()
    from muster.training.conversion import import_checkpoint

    _report(import_checkpoint(source, out, dtype=dtype), as_json=as_json)


@click.command(name="export", cls=Strict)
@click.argument("source", metavar="CKPT", type=NamedPath("folder"))
@click.option("--out", required=True, type=NamedPath("folder"), metavar="DIR", help="A new folder.")
@click.option("--dtype", metavar="DTYPE", help="float32, bfloat16, float16.  [default: as stored]")
@click.option("--step", metavar="N", help="Of a run's checkpoints.  [default: the newest]")
@click.option(
    "--tokenizer",
    type=NamedPath("folder"),
    metavar="DIR",
    help="Copy the tokenizer's files from here.",
)
@JSON
@needs_training
def export(
    source: Path,
    out: Path,
    dtype: str | None,
    step: str | None,
    tokenizer: Path | None,
    as_json: bool,
) -> None:
    """Turn a run's checkpoint into a folder that Hugging Face loads."""
    from muster.training.devices import start_single

    _check_dtype(dtype)
    at = step_number(step)
    start_single()
    from muster.training.conversion import export_checkpoint

    result, damaged = export_checkpoint(source, out, dtype=dtype, step=at, tokenizer=tokenizer)
    say_damaged(damaged, result["step"])
    _report(result, as_json=as_json)


def _check_dtype(dtype: str | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype!r}; choose from {', '.join(DTYPES)}")


def _report(result: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"muster": 1, **result}, indent=1))
        return
    click.echo(
        f"{result['model']}: {format_count(int(str(result['parameters'])))} parameters, "
        f"{format_bytes(float(str(result['bytes'])))} of {result['dtype']}, step {result['step']}, "
        f"in {printable(Path(str(result['folder'])))}"
    )
