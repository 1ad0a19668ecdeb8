"""A run's folder without a run: an imported checkpoint under the numbers of later steps."""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any


def add_step(checkpoints: Path, step: int, **meta: Any) -> Path:
    """Copy step 0 to another step, and record more beside its weights."""
    folder = checkpoints / str(step)
    shutil.copytree(checkpoints / "0", folder)
    record = folder / "meta" / "metadata"
    content = json.dumps(json.loads(record.read_text()) | {"step": step} | meta).encode()
    record.write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["step"] = step
    manifest["files"]["meta/metadata"] = [len(content), zlib.crc32(content)]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def damage(step: Path, item: str) -> None:
    """Empty the files of one item of a step."""
    for path in (step / item).rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
