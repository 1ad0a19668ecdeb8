"""`muster plan`: how to train a model on a cluster, and why."""

import json
import re
from pathlib import Path

import click

from muster.cli.files import check_outputs, write_whole
from muster.cli.options import CONSTANTS, JSON, Strict, fixed_ways, one_of, read_batch
from muster.errors import BadInput, shorten
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan import Plan
from muster.planner.search import Minimize, Restrictions
from muster.planner.sweep import WHAT, Sweep, sweep_of
from muster.planner.workload import make_workload
from muster.roofline.remat import parse_remat
from muster.roofline.software import default_software
from muster.roofline.workload import usual_formats
from muster.units import parse_count

DOES_NOT_FIT = 1
_FRACTION = re.compile(r"(?P<number>\d{0,9}\.?\d{1,9})\s*(?P<percent>%?)", re.ASCII)
MINIMIZE: tuple[Minimize, ...] = ("time", "cost", "chips")


@click.command(cls=Strict)
@click.argument("model")
@click.option(
    "--on",
    "hardware",
    required=True,
    multiple=True,
    metavar="HARDWARE",
    help="v5p:16x20x28, v6e-256, h100:1024; give it again to compare clusters.",
)
@click.option(
    "--batch",
    required=True,
    metavar="TOKENS",
    help="Global batch: 4M (4 x 1024 x 1024 tokens), 1024seq.",
)
@click.option("--seq", metavar="N", help="Sequence length.  [default: 4096 or the model's context]")
@click.option("--tokens", metavar="N", help="Tokens of the whole run: 15T (1e12).")
@click.option(
    "--mfu",
    metavar="F",
    help="Assume this share of peak FLOPs (6 per parameter and token) instead of predicting it.",
)
@click.option(
    "--remat",
    metavar="POLICY",
    help=(
        "Hold what the backward pass computes again instead of keeping: none; minimal (norms and "
        "activation functions); outputs (all but each layer's input and attention's output); full "
        "(all but each layer's input); offload (as minimal, what is kept waits on the host)."
    ),
)
@click.option(
    "--fix",
    multiple=True,
    metavar="AXIS=N",
    help="Hold how many ways an axis splits: tensor=4, fsdp=64; or microbatches=8.",
)
@click.option("--max-chips", metavar="N", help="Use at most so many chips.")
@click.option("--minimize", default="time", metavar="WHAT", help="time (default), cost or chips.")
@click.option("--sweep", metavar="WHAT", help="Add a curve over batch, chips or seq.")
@click.option(
    "--param-dtype",
    metavar="DTYPE",
    help="Format of the parameters: bf16, f32.  [default: bf16; on GPUs beside an f32 master]",
)
@click.option(
    "--optimizer-dtype",
    metavar="DTYPE",
    help="Format of Adam's two moments: f32, bf16.  [default: f32]",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write plan.json here."
)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page of pictures."
)
@CONSTANTS
@JSON
def plan(
    model: str,
    hardware: tuple[str, ...],
    batch: str,
    seq: str | None,
    tokens: str | None,
    mfu: str | None,
    remat: str | None,
    fix: tuple[str, ...],
    max_chips: str | None,
    minimize: str,
    sweep: str | None,
    param_dtype: str | None,
    optimizer_dtype: str | None,
    out: Path | None,
    html: Path | None,
    constants: str,
    as_json: bool,
) -> int:
    """Plan the training of MODEL (a catalogue name, a config.json, a Hub id) on HARDWARE.

    Exit status 1 says that the model does not fit.
    """
    if len(hardware) > 1 and (out or html or sweep):
        raise BadInput("--out, --html and --sweep are of one plan; give one --on with them")
    own = "the model's own config"
    check_outputs(
        {"--out": out, "--html": html}, [(own, Path(model)), (own, Path(model) / "config.json")]
    )
    least = one_of(minimize, "--minimize", MINIMIZE)
    what = one_of(sweep, "--sweep", WHAT) if sweep is not None else None
    if what == "chips" and least != "time":
        raise BadInput(
            f"--sweep chips asks what more chips give, --minimize {least} takes fewer of them: "
            f"give one of the two"
        )
    architecture = find_model(model)
    workload = make_workload(
        architecture,
        read_batch(batch),
        sequence_length=parse_count(seq, "--seq", binary=True) if seq is not None else None,
        train_tokens=parse_count(tokens, "--tokens") if tokens is not None else None,
        param_dtype=param_dtype or "bf16",
        optimizer_dtype=optimizer_dtype or "f32",
    )
    formats_given = param_dtype is not None or optimizer_dtype is not None
    restrictions = Restrictions(
        fixed=fixed_ways(fix),
        remat=parse_remat(remat) if remat is not None else None,
        max_chips=parse_count(max_chips, "--max-chips") if max_chips is not None else None,
    )
    clusters = [parse_cluster(name, constants=constants) for name in hardware]
    plans = [
        make_plan(
            architecture,
            cluster,
            workload if formats_given else usual_formats(workload, default_software(cluster.chip)),
            mfu=_fraction(mfu) if mfu is not None else None,
            restrictions=restrictions,
            minimize=least,
        )
        for cluster in clusters
    ]
    curve = sweep_of(plans[0], what, restrictions, minimize=least) if what else None
    files = {}
    if out is not None:
        files[out] = _json(plans[0].to_json()) + "\n"
    if html is not None:
        files[html] = _page(plans[0], restrictions, least)
    write_whole(files)
    _show(plans, curve, least, as_json=as_json)
    return 0 if any(each.fits for each in plans) else DOES_NOT_FIT


def _page(plan: Plan, restrictions: Restrictions, minimize: Minimize) -> str:
    from muster.report.html import html_of

    return html_of(plan, restrictions=restrictions, minimize=minimize)


def _json(document: object) -> str:
    return json.dumps(document, indent=1, allow_nan=False)


def _show(plans: list[Plan], curve: Sweep | None, minimize: Minimize, *, as_json: bool) -> None:
    if as_json:
        documents = [each.to_json() for each in plans]
        if curve is not None:
            documents[0]["sweep"] = curve.to_json()
        click.echo(_json(documents[0] if len(plans) == 1 else documents))
        return
    from muster.report.plan_report import print_plan

    if len(plans) > 1:
        from muster.report.comparison import print_comparison

        print_comparison(plans)
        return
    print_plan(plans[0], minimize=minimize)
    if curve is not None:
        from muster.report.sweep_table import print_sweep

        print_sweep(curve)


def _fraction(text: str) -> float:
    match = _FRACTION.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"--mfu {shorten(text)} is not a number; write 0.4 or 40%")
    number = float(match["number"])
    if number == 1 and not match["percent"]:
        raise BadInput("--mfu 1 may be 1% or all of the peak; write 0.01, 1% or 100%")
    return number / 100 if match["percent"] else number
