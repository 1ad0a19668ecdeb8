"""Run several command lines in one process, since importing JAX takes longer than refusing them.

Reads a JSON list of lists of arguments; writes a JSON list of [status, output, errors].
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

from tests.cli.conftest import Outcome

ROOT = str(Path(__file__).parents[2])


def outcomes(commands: list[list[str]], folder: Path) -> list[Outcome]:
    """What each command said, all of them run in one new process in `folder`."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]),
            "MUSTER_COMPILE_CACHE": str(folder / "compiled"),
        },
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(*answer) for answer in json.loads(done.stdout)]


def main() -> None:
    """Run them."""
    from muster.cli.main import run  # noqa: PLC0415

    answers = []
    for arguments in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        status = -1
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = run(arguments)
            except Exception:
                traceback.print_exc()
        answers.append((status, out.getvalue(), err.getvalue()))
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
