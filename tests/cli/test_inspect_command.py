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
        (b"\xff\xfe", "is not UTF-8 text"),
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


def program(op: str, head: str = "x") -> str:
    return (
        f"HloModule {head}, is_scheduled=true\n\nENTRY %m (a: f32[8]) -> f32[8] {{\n"
        f"  %a = f32[4096]{{0}} parameter(0)\n  ROOT %r = f32[4096]{{0}} {op}\n}}\n"
    )


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ('custom-call(%a), custom_call_target="__cublas$gemm"', "custom call __cublas$gemm"),
        ('custom-call(%a), custom_call_target="__cudnn$norm"', "custom call __cudnn$norm"),
        ('custom-call(%a), custom_call_target="__gpu$x"', "custom call __gpu$x"),
        (
            'fusion(%a), backend_config={"fusion_backend_config":{}}',
            "fusion_backend_config of its operations",
        ),
        (
            'fusion(%a), backend_config={"triton_gemm_config":{}}',
            "triton_gemm_config of its operations",
        ),
        (
            'copy(%a), backend_config="{\\"operation_queue_id\\":\\"0\\"}"',
            "operation_queue_id of its operations",
        ),
    ],
)
def test_a_program_for_gpus(tmp_path: Path, op: str, said: str) -> None:
    path = tmp_path / "gpu.hlo.txt"
    path.write_text(program(op))
    answer = refused(path)
    assert answer == (
        f"{path} is a program for GPUs ({said}); inspect reads scheduled TPU programs"
    )


@pytest.mark.parametrize(
    "op",
    [
        "dot()",
        "convolution(%a, %a), dim_labels=b_i->o",
        "slice-start(%a)",
        'copy(%a), backend_config={"window_config":{"estimated_cycles":"many"}}',
        'copy(%a), backend_config={"window_config":["estimated_cycles"]}',
    ],
)
def test_an_operation_that_no_compiler_writes(tmp_path: Path, op: str) -> None:
    path = tmp_path / "odd.hlo.txt"
    path.write_text(program(op))
    assert "is not as the TPU compiler writes it" in refused(path)


def test_a_programs_text_cannot_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "bells.hlo.txt"
    name = 'metadata={op_name="jit(f)/\x1b[2J[red]bad[/red]\x07/mul"}'
    path.write_text(program(f"copy(%a), {name}", head="\x1b[31ma\x1b]0;hi\x07"))
    done = CliRunner().invoke(command.inspect, [str(path), "--on", "v5p:2x2x1"])
    assert done.exit_code == 0
    assert not {"\x1b", "\x07"} & set(done.stdout)
    assert "\\x1b[2J[red]bad[/red]\\x07" in done.stdout
    assert "\\x1b[31ma" in done.stdout


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


def test_a_trace_goes_to_a_file_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "step.hlo.txt"
    path.write_text(TEXT)
    done = CliRunner().invoke(
        command.inspect, [str(path), "--on", "v5p:2x2x1", "--trace", "-"], standalone_mode=False
    )
    assert isinstance(done.exception, BadInput)
    assert "--trace writes a file, not to standard output" in str(done.exception)
