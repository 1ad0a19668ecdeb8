"""What the compiler's refusals say, in the words that it has used."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.proof import compile as compiling
from muster.proof.compile import refusal

GIB = 1024**3


@pytest.mark.parametrize(
    ("said", "needed", "usable", "space"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (266.59G) exceeds available HBM (95.73G).\nmore",
            266.59 * GIB,
            95.73 * GIB,
            "hbm",
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 26.87G of 15.48G hbm. Exceeded hbm capacity by 11.39G.",
            26.87 * GIB,
            15.48 * GIB,
            "hbm",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17.0M of 16.0M vmem.",
            17 * 1024**2,
            16 * 1024**2,
            "vmem",
        ),
    ],
)
def test_too_large(said: str, needed: float, usable: float, space: str) -> None:
    found = refusal(RuntimeError(said))
    assert found["status"] == "too_large"
    assert (found["needed"], found["usable"]) == (round(needed), round(usable))
    assert found["space"] == space
    assert found["message"] == said.splitlines()[0]
    assert found["detail"] == said


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("\nINVALID_ARGUMENT: No such compile option: 'xla_x'\nat", "INVALID_ARGUMENT: No such "
         "compile option: 'xla_x'"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_refused(said: str, message: str) -> None:
    found = refusal(RuntimeError(said))
    assert (found["status"], found["message"]) == ("refused", message)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), MemoryError()])
def test_what_this_machine_lacks_is_no_answer(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(compiling, "compile_step", fail)
    monkeypatch.setattr(compiling, "end_with_parent", lambda _: None)
    (tmp_path / "request.json").write_text("{}")
    assert compiling.main([str(tmp_path / "request.json"), str(tmp_path), "1"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "died"
    assert type(fault).__name__ in result["message"] or "No space left" in result["message"]


ORPHAN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
from muster.proof.compile import end_with_parent
end_with_parent(os.getppid())
print("ready", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(60)
"""


ASKED_BY_NOBODY = """
import time
from muster.proof.compile import end_with_parent
end_with_parent(1)
time.sleep(60)
"""


def test_a_compilation_whose_process_is_gone_before_it_begins_ends() -> None:
    """Its parent is another by the time that it can look: this process, not the one that asked."""
    begun = subprocess.run([sys.executable, "-c", ASKED_BY_NOBODY], timeout=50, check=False)
    assert begun.returncode == 1


@pytest.mark.slow
def test_a_compilation_ends_with_the_process_that_asked() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        ready, pid = asking.stdout.readline().split()
        assert ready == "ready"
        os.kill(int(pid), 0)
        asking.kill()
    for _ in range(300):
        time.sleep(0.1)
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return
    os.kill(int(pid), signal.SIGKILL)
    pytest.fail("the child outlived the process that asked for it")
