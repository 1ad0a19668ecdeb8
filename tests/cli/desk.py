"""A folder with a plan, and a script that answers in the compiler's place."""

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click
import pytest
from click.testing import CliRunner

from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.proof import compiler
from muster.roofline.workload import Workload
from tests.proof.fixtures import facts_of, text_of
from tests.proof.make_programs import LLAMA

NAME = "llama-v5p-hybrid"
GB = 10**9


@dataclass(frozen=True)
class Done:
    """What came of a command."""

    status: object
    out: str
    err: str
    error: BaseException | None


@dataclass(frozen=True)
class Desk:
    """What a command that compiles a plan's step works with."""

    folder: Path
    plan: Path

    @classmethod
    def made(cls, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Self:
        """A plan of a small model; the compiler's process is the script that `answer` writes."""
        plan = make_plan(
            architecture_from_config(LLAMA, name="small"),
            parse_cluster("v5p:2x2x4"),
            Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
        )
        path = folder / "plan.json"
        path.write_text(json.dumps(plan.to_json()))
        monkeypatch.setattr(sys, "executable", str(folder / "child"))
        versions = {"jax": "1", "jaxlib": "1", "libtpu": "1"}
        monkeypatch.setattr(compiler, "versions", lambda: versions)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return cls(folder, path)

    def run(self, command: click.Command, *arguments: str) -> Done:
        """A command on the plan."""
        done = CliRunner().invoke(command, [str(self.plan), *arguments], standalone_mode=False)
        return Done(done.return_value, done.stdout, done.stderr, done.exception)

    def answer(self, script: str) -> None:
        """Let the compiler be this shell script."""
        path = self.folder / "child"
        path.write_text(f"#!/bin/sh\necho ran >> {self.folder}/runs\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)

    @property
    def runs(self) -> int:
        """How often the compiler was asked."""
        return len((self.folder / "runs").read_text().splitlines())

    def compiled(self, temporaries: int = GB) -> str:
        """A script that compiles anything to one program, with so many bytes of temporaries."""
        facts = facts_of(NAME)
        (self.folder / "program.txt").write_text(text_of(NAME), "utf-8")
        memory = dict.fromkeys(("arguments", "outputs", "aliased"), GB) | {
            "temporaries": temporaries,
            "code": 0,
            "peak": 0,
            "host_temporaries": 0,
        }
        result = {
            "status": "compiled",
            "memory": memory,
            "mesh": facts["mesh"],
            "coordinates": facts["coordinates"],
            "compile_seconds": 2.0,
        }
        written = self.folder / f"compiled-{temporaries}.json"
        written.write_text(json.dumps(result))
        program = f'cp {self.folder}/program.txt "$4/program.hlo.txt"'
        return f'{program}; cp {written} "$4/result.json"'
