"""The process that compiles: started, waited for, ended; how it ended in a line.

The compiler ends its process on some questions (an abort, an arithmetic fault), and takes more
memory than some machines have. So nothing else runs in it, and it never outlives who asked.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster.proof import kept

# One process holds libtpu unless told otherwise; no metadata server is asked where there is none.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
MOST_LAST_WORDS = 300
TOLD_EVERY_SECONDS = 0.5
STARTING = "starting the compiler"
# Signals that say nothing about the compiler: a machine out of memory, a user who ends it.
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")

type Progress = Callable[[str, float], None]


def run_child(
    request: Mapping[str, Any],
    work: Path,
    timeout_seconds: float | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """What came of a request; the child's result, or how it ended without one.

    Args:
        request: what to compile.
        work: an empty folder, where the child leaves what it made.
        timeout_seconds: after which the child is ended; None for never.
        progress: told the stage and the seconds since the beginning, twice a second.
    """
    question = work / "request.json"
    question.write_text(json.dumps(request), "utf-8")
    begun = time.perf_counter()
    with (work / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "muster.proof.compile",
                *map(str, (question, work, os.getpid())),
            ],
            env=os.environ | ENVIRONMENT,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that a Ctrl-C reaches it through us, once
        )
        try:
            status = _wait(child, work, timeout_seconds, progress)
        except BaseException:
            _end(child)
            raise
    passed = time.perf_counter() - begun
    if status is None:
        _end(child)
        said = f"the compiler was not done after {timeout_seconds:g} s and was stopped"
        return {"status": "died", "message": said, "compile_seconds": passed}
    result = work / kept.RESULT
    if status == 0 and result.exists():
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return found
    return {
        "status": "died",
        "message": how_it_died(status, (work / "log.txt").read_text("utf-8", errors="replace")),
        "ended_by": signal_name(status),
        "compile_seconds": passed,
    }


def _wait(
    child: subprocess.Popen[bytes],
    work: Path,
    timeout_seconds: float | None,
    progress: Progress | None,
) -> int | None:
    """The child's exit status; None where it took longer than it may."""
    begun = time.perf_counter()
    while True:
        passed = time.perf_counter() - begun
        if progress is not None:
            progress(_stage(work), passed)
        left = math.inf if timeout_seconds is None else timeout_seconds - passed
        if left <= 0:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(left, TOLD_EVERY_SECONDS))


def _stage(work: Path) -> str:
    try:
        return (work / "stage").read_text("utf-8") or STARTING
    except OSError:
        return STARTING


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def signal_name(status: int) -> str:
    """The signal that ended a process, "" where none did.

    >>> signal_name(-8), signal_name(1)
    ('SIGFPE', '')
    """
    if status >= 0:
        return ""
    return signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"


def how_it_died(status: int, log: str) -> str:
    r"""One line on how a child process ended without a result.

    >>> how_it_died(-8, "")
    'the compiler process ended with SIGFPE, an arithmetic fault inside the TPU compiler'
    >>> how_it_died(1, "Traceback ...\nModuleNotFoundError: No module named 'optax'\n")
    "the compiler process failed: ModuleNotFoundError: No module named 'optax'"
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if status >= 0:
        return f"the compiler process failed: {lines[-1][:MOST_LAST_WORDS] if lines else status}"
    name = signal_name(status)
    why = {
        "SIGFPE": ", an arithmetic fault inside the TPU compiler",
        "SIGABRT": ": the TPU compiler gave up",
        "SIGSEGV": ", a memory fault inside the TPU compiler",
        "SIGKILL": ": killed from outside, as by a machine out of memory",
    }.get(name, "")
    fatal = [line for line in lines if line.startswith("F") and "]" in line] or [
        line for line in lines if "Check failed" in line
    ]
    said = f" ({fatal[0].split('] ', 1)[-1][:MOST_LAST_WORDS]})" if fatal else ""
    return f"the compiler process ended with {name}{why}{said}"
