"""`muster inspect` of files that are no program."""

import gzip
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli import inspect as command
from muster.errors import BadInput
from tests.proof.fixtures import text_of

TEXT = text_of("llama-v5p-one-chip")


def refused(path: Path) -> str:
    arguments = [str(path), "--on", "v5p:2x2x1"]
    done = CliRunner().invoke(command.inspect, arguments, standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    said = str(done.exception)
    assert "\n" not in said
    assert path.name in said
    return said


OP = "  ROOT %a = f32[8]{0} while(%a), condition=%m, body=%m"
ENDLESS = f"HloModule x, is_scheduled=true\n\nENTRY %m (a: f32[8]) -> f32[8] {{\n{OP}\n}}\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no line begins with HloModule"),
        (b"\xff\xfe", "is not text"),
        (TEXT[: TEXT.index("\nENTRY")].encode(), "the file is cut: no ENTRY computation"),
        (gzip.compress(TEXT.encode())[:20_000], "is cut or damaged"),
        (gzip.compress(TEXT.encode())[:40] + b"x" * 90, "is cut or damaged"),
        (ENDLESS.encode(), "its computations call themselves"),
    ],
    ids=["empty", "binary", "no entry", "cut", "damaged", "endless"],
)
def test_the_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "program.hlo.txt"
    path.write_bytes(content)
    assert says in refused(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)
    assert refused(tmp_path / "nowhere").startswith("no file")
    os.mkfifo(tmp_path / "pipe")
    assert "is a device or a pipe" in refused(tmp_path / "pipe")


def test_a_small_file_of_endless_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_BYTES", 10**6)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b" " * 10**7))
    assert "holds more text than any program" in refused(path)


def test_a_trace_that_cannot_be_written_names_its_option(tmp_path: Path) -> None:
    path = tmp_path / "x.hlo.txt"
    path.write_text(TEXT, "utf-8")
    arguments = [str(path), "--on", "v5p:2x2x1", "--trace", str(tmp_path / "no" / "t.json")]
    done = CliRunner().invoke(command.inspect, arguments, standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).startswith("--trace: cannot write")
    assert done.stdout == ""  # found before any work


def test_a_program_for_other_hardware(tmp_path: Path) -> None:
    path = tmp_path / "step.hlo.txt"
    path.write_text(text_of("llama-v5p-fsdp-tensor"))  # of 16 chips
    assert "is a program for 16 devices; v5p:2x2x1 has 4" in refused(path)
