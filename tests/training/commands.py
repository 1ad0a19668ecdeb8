"""`muster` as a process of its own, on a small model's config, with compiled programs kept."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training import tiny

TIMEOUT = 400  # seconds; two cores may be shared by much else


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    def well(self) -> "Ended":
        """The same, of a command that ended well and wrote no traceback."""
        assert self.status == 0, self.err
        assert "Traceback" not in self.err, self.err
        return self


@dataclass(frozen=True)
class Workshop:
    """A folder with a model, a corpus, and programs that were compiled before."""

    folder: Path

    @property
    def corpus(self) -> Path:
        return self.folder / "texts"

    def config(self, **changes: Any) -> Path:
        path = self.folder / "model" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(tiny.CONFIG | {"vocab_size": 320} | changes), "utf-8")
        return path

    def train(self, run: Path, *more: object, model: Path | None = None) -> list[str]:
        """The arguments of a run of 8 x 32 bytes a step on eight devices."""
        plan = ["--on", "cpu:8", "--seq", "32", "--batch", "8seq"]
        for axis in ("data", "fsdp", "tensor"):
            plan += ["--fix", f"{axis}=2"]
        words = (model or self.config(), *plan, "--data", self.corpus, "--out", run, *more)
        return ["train", *map(str, words)]

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "muster", *arguments],
            env=os.environ | {"MUSTER_COMPILE_CACHE": str(self.folder / "compiled")},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object) -> Ended:
        process = self.start([str(word) for word in arguments])
        try:
            return self.end(process)
        finally:
            process.kill()

    @staticmethod
    def end(process: subprocess.Popen[str]) -> Ended:
        out, err = process.communicate(timeout=TIMEOUT)
        return Ended(process.returncode, out, err)
