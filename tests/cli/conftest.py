"""Run the command line as a person does: a process with its own output and exit status."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def only_line(self) -> str:
        """The one line on standard error; fails where there is more, or output beside it."""
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


type Muster = Callable[..., Outcome]


@pytest.fixture
def muster() -> Muster:
    def run(*arguments: str, python_flags: tuple[str, ...] = ()) -> Outcome:
        done = subprocess.run(
            [sys.executable, *python_flags, "-m", "muster", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run
