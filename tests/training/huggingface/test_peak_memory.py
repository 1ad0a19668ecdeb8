"""Memory beside the weights: near that of the largest tensor twice, measured from outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("peak_memory.py")
# What XLA takes to compile a dozen copies, and the blocks of 8 MiB that are read or written.
BESIDES_MB = 45


def measured(action: str, folder: Path, devices: int) -> dict[str, float]:
    command = [sys.executable, str(PROGRAM), action, str(folder), str(devices)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_import_and_export_hold_no_second_copy(tmp_path: Path) -> None:
    exported = measured("export", tmp_path / "model", 1)
    assert 300 < exported["weights"] < 320
    assert exported["peak"] < 2 * exported["largest"] + BESIDES_MB
    for devices in (1, 8):
        imported = measured("import", tmp_path / "model", devices)
        allowed = imported["weights"] + 2 * imported["largest"] + BESIDES_MB
        assert imported["peak"] < allowed < 2 * imported["weights"]
