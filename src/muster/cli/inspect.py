"""`muster inspect`: the same reading of any scheduled TPU program, whoever compiled it."""

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.files import check_outputs, write_option
from muster.cli.options import JSON, Strict
from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.hf_config import printable
from muster.planner.given import read_given

if TYPE_CHECKING:
    from muster.proof.hlo import Program
    from muster.proof.reading import Reading

MOST_BYTES = 2 * 1024**3
GZIP = b"\x1f\x8b"


@click.command(cls=Strict)
@click.argument("program", metavar="FILE.hlo.txt", type=click.Path(path_type=Path))
@click.option("--on", "hardware", required=True, metavar="HARDWARE", help="v5p:8x8x8, v6e-256.")
@click.option(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Timeline for Perfetto."
)
@JSON
def inspect(program: Path, hardware: str, trace: Path | None, as_json: bool) -> None:
    """Read a scheduled HLO text: cycles by operation, collectives, timeline, findings."""
    from muster.proof.hlo.kinds import gpu_part
    from muster.proof.reading import is_of_its_size, read_program
    from muster.proof.simulate import NOT_AS_WRITTEN
    from muster.proof.trace import trace_bytes

    check_outputs({"--trace": trace}, [("the program itself", program)])
    cluster = parse_cluster(hardware)
    try:
        parsed = _program(program)
        if said := gpu_part(parsed):
            raise BadInput(
                f"{printable(program)} is a program for GPUs ({printable(said)}); inspect reads "
                "scheduled TPU programs"
            )
        if not is_of_its_size(parsed, cluster):
            there = cluster.chips * cluster.chip.devices_per_chip
            raise BadInput(
                f"{printable(program)} is a program for {parsed.devices:,} "
                f"device{'s' * (parsed.devices != 1)}; {cluster.name} has {there:,}: name the "
                "hardware that it was compiled for"
            )
        reading = read_program(parsed, cluster)
    except RecursionError:
        raise BadInput(f"{printable(program)} is nested too deep to be read") from None
    except NOT_AS_WRITTEN as error:
        which = next(iter(getattr(error, "__notes__", ())), "an operation")
        raise BadInput(
            f"{printable(program)} cannot be read: {printable(which)[:80]} is not as the TPU "
            f"compiler writes it ({type(error).__name__}: {printable(str(error))[:80]})"
        ) from error
    try:
        _show(reading, program, as_json=as_json)
    finally:  # whoever reads the answer may have gone: the file is written all the same
        if trace is not None:
            compressed = trace.suffix == ".gz"
            content = trace_bytes(reading.timeline, name=program.name, compressed=compressed)
            write_option("--trace", trace, content)


def _show(reading: "Reading", program: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(reading.to_json(), indent=1, allow_nan=False))
        return
    from muster.report.verdict_report import print_reading

    print_reading(reading, printable(program.name))


def _text(path: Path) -> str:
    where = printable(path)
    content = read_given(path, most_bytes=MOST_BYTES, kind="program")
    if content[:2] == GZIP:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
                content = stream.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"{where} is cut or damaged: {error}") from None
        if len(content) > MOST_BYTES:
            raise BadInput(f"{where} holds more text than any program")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(
            f"{where} is not UTF-8 text; XLA writes it with --xla_dump_hlo_as_text"
        ) from None


def _program(path: Path) -> "Program":
    from muster.proof.hlo import parse

    text = _text(path)
    try:
        return parse(text)
    except BadInput as error:
        raise BadInput(f"{printable(path)}: {error}") from None
