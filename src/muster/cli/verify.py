"""`muster verify`: the plan's own step, compiled by the real TPU compiler for the real topology."""

import json
import re
from pathlib import Path

import click

from muster.cli.files import check_writable
from muster.cli.options import JSON, Strict
from muster.errors import BadInput

DOES_NOT_PASS = 1


@click.command(cls=Strict)
@click.argument("plan", metavar="plan.json", type=click.Path(path_type=Path))
@click.option(
    "--flag",
    "flags",
    multiple=True,
    metavar="NAME=VALUE",
    help="A compiler option, as xla_tpu_enable_async_collective_fusion=true.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the step's timeline for Perfetto (step.json.gz).",
)
@click.option(
    "--hlo",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep the scheduled program's text here.",
)
@JSON
def verify(
    plan: Path, flags: tuple[str, ...], trace: Path | None, hlo: Path | None, as_json: bool
) -> int:
    """Compile the training step of a plan and read what the compiler made of it.

    No TPU is needed. Exit status 0: it fits; 1: it does not, or does not compile.
    """
    from muster.planner.plan_file import read_plan
    from muster.proof.compiler import compile_plan
    from muster.proof.trace import write_trace
    from muster.proof.verdict import judge

    for option, file in (("--trace", trace), ("--hlo", hlo)):
        if file is not None:
            check_writable(file, option)
    planned = read_plan(plan)
    options = _options(flags)
    if not as_json:
        click.echo("compiling the step for the plan's topology ...", err=True)
    verdict = judge(planned, compile_plan(planned, options=options))
    if trace is not None and verdict.timeline is not None:
        write_trace(verdict.timeline, trace, name=planned.architecture.name)
    if hlo is not None and verdict.compilation.text is not None:
        hlo.write_bytes(verdict.compilation.text.read_bytes())
    if as_json:
        click.echo(json.dumps(verdict.to_json(), indent=1, allow_nan=False))
    else:
        from muster.report.verdict_report import print_verdict

        print_verdict(verdict)
    return 0 if verdict.fits else DOES_NOT_PASS


def _options(flags: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for flag in flags:
        name, equals, value = flag.lstrip("-").partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            raise BadInput(f"--flag {flag!r}; write it like xla_tpu_scoped_vmem_limit_kib=32768")
        if name in options:
            raise BadInput(f"--flag {name} is given twice; give it once")
        options[name] = value
    return options
