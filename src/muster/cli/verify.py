"""`muster verify`: the plan's own step, compiled by the real TPU compiler for the real topology."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.ending import ended_once
from muster.cli.files import check_outputs, write_option
from muster.cli.options import JSON, Strict
from muster.errors import BadInput, shorten
from muster.models.hf_config import printable

if TYPE_CHECKING:
    from muster.planner.plan_file import PlannedRun
    from muster.proof.compiler import Compilation
    from muster.proof.others import Tried
    from muster.proof.verdict import Verdict

DOES_NOT_PASS = 1
MOST_OTHERS = 20


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
@click.option(
    "--timeout",
    metavar="SECONDS",
    help="Stop a compilation that takes longer. Without it none is stopped.",
)
@click.option(
    "--others",
    metavar="N",
    help="Layouts to try next where this one does not pass: 3 where the compiler died of it or "
    "--out is given, else 0.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the plan that passes here: this one, or the next best layout that does.",
)
@JSON
def verify(
    plan: Path,
    flags: tuple[str, ...],
    trace: Path | None,
    hlo: Path | None,
    timeout: str | None,
    others: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Compile the training step of a plan and read what the compiler made of it.

    No TPU is needed. Exit status 0: it fits; 1: it does not, or does not compile, whatever other
    layout passes.

    Compilations are kept in the user's cache folder (muster/proof), 2 GiB at most; those used
    longest ago go first.
    """
    from muster.planner.plan_file import read_plan
    from muster.proof.compiler import compile_with_known_options
    from muster.proof.others import MOST_TRIED, try_others
    from muster.proof.verdict import judge

    check_outputs({"--trace": trace, "--hlo": hlo, "--out": out}, [("the plan itself", plan)])
    options, seconds, asked = _options(flags), _seconds(timeout), _count(others)
    planned = read_plan(plan)

    def compile_one(run: "PlannedRun") -> "Compilation":
        if as_json:
            return compile_with_known_options(run, options, timeout_seconds=seconds)
        return _while_told(
            f"compiling the step, {run.layout}, for {run.cluster.name}",
            lambda progress: compile_with_known_options(
                run, options, timeout_seconds=seconds, progress=progress
            ),
        )

    tried: list[Tried] = []
    with ended_once():
        verdict = judge(planned, compile_one(planned))
        if not verdict.fits:
            unasked = MOST_TRIED if out is not None or verdict.compilation.compilers_fault else 0
            most = unasked if asked is None else asked
            short = verdict.memory is not None or verdict.compilation.status == "too_large"
            tried = list(try_others(planned, compile_one, most=most, short_of_memory=short))
    try:
        _show(verdict, tried, as_json=as_json)
    finally:  # whoever reads the answer may have gone: the files are written all the same
        _write(
            {
                ("--trace", trace): lambda path: _trace(verdict, path),
                ("--hlo", hlo): lambda path: _program(verdict, path),
                ("--out", out): lambda path: _passing(verdict, tried, path),
            }
        )
    return 0 if verdict.fits else DOES_NOT_PASS


def _show(verdict: "Verdict", tried: "list[Tried]", *, as_json: bool) -> None:
    if as_json:
        document = verdict.to_json() | {"others": [each.to_json() for each in tried]}
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    from muster.report.verdict_report import print_others, print_verdict

    print_verdict(verdict)
    print_others(tried)


def _write(files: Mapping[tuple[str, Path | None], Callable[[Path], str | bytes | None]]) -> None:
    """Write every file that can be written, then say which could not."""
    failed = []
    for (option, path), content_for in files.items():
        if path is None:
            continue
        try:
            content = content_for(path)
            if content is not None:
                write_option(option, path, content)
        except BadInput as error:
            failed.append(str(error))
        except OSError as error:  # the program is not where it was kept
            said = error.strerror or error
            failed.append(f"{option}: cannot write {printable(path)}: {said}")
    if failed:
        raise BadInput("; ".join(failed))


def _trace(verdict: "Verdict", path: Path) -> bytes | None:
    from muster.proof.trace import trace_bytes

    if verdict.timeline is None:
        click.echo(f"muster: there is no program, so {printable(path)} is not written", err=True)
        return None
    name = verdict.planned.architecture.name
    return trace_bytes(verdict.timeline, name=name, compressed=path.suffix == ".gz")


def _program(verdict: "Verdict", path: Path) -> bytes | None:
    if verdict.compilation.text is None:
        click.echo(f"muster: there is no program, so {printable(path)} is not written", err=True)
        return None
    return verdict.compilation.text.read_bytes()


def _passing(verdict: "Verdict", tried: "list[Tried]", path: Path) -> str | None:
    """The plan that passes; where none does, no file."""
    passing = verdict.planned if verdict.fits else None
    passing = passing or next((each.planned for each in tried if each.passes), None)
    if passing is None:
        click.echo(f"muster: nothing passes, so {printable(path)} is not written", err=True)
        return None
    return json.dumps(passing.document, indent=1) + "\n"


def _while_told[Out](what: str, run: Callable[[Callable[[str, float], None]], Out]) -> Out:
    """Run something long: its stage and seconds on a terminal, else a line as it begins."""
    from rich.console import Console

    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        begun: list[str] = []

        def say_once(stage: str, seconds: float) -> None:
            del stage, seconds
            if not begun:
                begun.append(what)
                click.echo(f"{what} ...", err=True)

        return run(say_once)
    with screen.status(what) as shown:
        return run(lambda stage, seconds: shown.update(f"{what}: {stage}, {seconds:.0f} s"))


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


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,7}(\.\d{1,3})?", text, re.ASCII) or not float(text):
        raise BadInput(f"--timeout {shorten(text)} is not a number of seconds; write it like 600")
    return float(text)


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,2}", text, re.ASCII) or int(text) > MOST_OTHERS:
        raise BadInput(f"--others {shorten(text)} is not a number from 0 to {MOST_OTHERS}")
    return int(text)
