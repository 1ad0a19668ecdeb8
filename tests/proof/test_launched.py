"""The step that is compiled to be verified is the one that `muster train` runs."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from click.testing import CliRunner

from muster.cli.main import cli
from muster.planner.plan_file import read_plan
from muster.proof.compile import program_of
from muster.training import job
from muster.training.setup import Program


class Launched(Exception):
    """Instead of compiling and training."""

    def __init__(self, program: Program) -> None:
        self.program = program


def test_a_launched_plan_is_the_verified_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, data = tmp_path / "plan.json", tmp_path / "text.txt"
    data.write_text("muster " * 4000, "utf-8")
    made = CliRunner().invoke(
        cli,
        ["plan", "llama-tiny", "--on", "cpu:8", "--batch", "8seq", "--seq", "256",
         "--fix", "fsdp=2", "--fix", "sequence=2", "--fix", "tensor=2", "--out", str(plan)],
    )  # fmt: skip
    assert made.exit_code == 0, made.output

    def launched(program: Program, options: Any = None) -> None:
        del options
        raise Launched(program)

    monkeypatch.setattr(job, "compile_program", launched)
    arguments = ["train", str(plan), "--data", str(data), "--steps", "7", "--out", str(tmp_path)]
    ran = CliRunner().invoke(cli, arguments)
    assert isinstance(ran.exception, Launched), ran.output
    verified = program_of(read_plan(plan), jax.devices())
    assert ran.exception.program.lowered().as_text() == verified.lowered().as_text()


def test_a_plan_carries_its_compiler_options(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    arguments = ["plan", "llama-3-8b", "--on", "v5p:4x4x4", "--batch", "64seq", "--out", str(plan)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    held = read_plan(plan).compiler_options
    assert held["xla_tpu_enable_sparse_core_collective_offload_all_gather"] == "true"
    document = json.loads(plan.read_text("utf-8"))
    document["compiler"]["options"] = {"xla_some": "1"}
    plan.write_text(json.dumps(document), "utf-8")
    assert read_plan(plan).compiler_options == {"xla_some": "1"}
