"""Compilations kept in a folder, by what they depend on; the folder stays below a bound.

    FOLDER/ab/abcdef.../result.json        what came of it
                        program.hlo.txt    the scheduled program, where there is one

An entry is put in its place by a rename, so it is whole or not there. One that cannot be read all
the same (a full disk, another hand), or whose program is not the one that was written, by its bytes
and SHA-256, is as good as none.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 2 * 1024**3
RESULT, PROGRAM = "result.json", "program.hlo.txt"
SEAL = "program"  # in the result: the program's bytes and SHA-256
UNFINISHED = "new-"  # what the folders of compilations that run are called, from here on
# An unfinished folder this old belongs to a process that was killed.
ABANDONED_SECONDS = 24 * 3600.0
_NOT_KEPT = ("request.json", "stage")


def default_folder() -> Path:
    """Where compilations are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "muster" / "proof"


def entry(folder: Path, key: str) -> Path:
    """Where the compilation of a key is kept."""
    return folder / key[:2] / key


def read_result(place: Path) -> dict[str, Any] | None:
    """What is kept in a place; None where nothing is, or nothing that can be used."""
    try:
        result = json.loads((place / RESULT).read_text("utf-8"))
        if not isinstance(result, dict) or "status" not in result:
            return None
        said = result.pop(SEAL, None)
        if result["status"] == "compiled" and (said is None or said != _seal(place / PROGRAM)):
            return None
    except (OSError, ValueError, RecursionError):
        return None
    return result


def _seal(program: Path) -> dict[str, Any]:
    """What a program is known again by.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty or no text.
    """
    content = program.read_bytes()
    if not content.decode("utf-8"):
        raise ValueError("a program without text")
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def mark_used(place: Path) -> None:
    """Remember that an entry was of use, so that others go first."""
    with contextlib.suppress(OSError):
        os.utime(place / RESULT)


def keep(work: Path, place: Path) -> None:
    """Put a finished folder in its place.

    Raises:
        OSError: there is no room, or no right to.
    """
    for name in _NOT_KEPT:
        (work / name).unlink(missing_ok=True)
    ready = place.with_name(place.name + f".{os.getpid()}")
    try:
        shutil.copytree(work, ready)
        if place.exists() and read_result(place) is None:
            shutil.rmtree(place, ignore_errors=True)
        ready.rename(place)
    except OSError:
        shutil.rmtree(ready, ignore_errors=True)
        if read_result(place) is None:  # else another process was first: its result is as good
            raise


def make_room(folder: Path, *, most_bytes: int = MOST_BYTES, spare: Path | None = None) -> None:
    """Remove what was used longest ago until the folder is below a bound.

    Args:
        folder: where compilations are kept.
        most_bytes: all of them may take.
        spare: an entry that stays whatever it takes.
    """
    with contextlib.suppress(OSError):
        for left in _abandoned(folder):
            shutil.rmtree(left, ignore_errors=True)
        held = sorted(_entries(folder), reverse=True)  # the newest first
        total = 0
        for _, size, place in held:
            total += size
            if total > most_bytes and place != spare:
                shutil.rmtree(place, ignore_errors=True)
                total -= size


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each entry was last used, its bytes, and where it is."""
    for result in folder.glob(f"??/*/{RESULT}"):
        place = result.parent
        if place.name.startswith(UNFINISHED):
            continue
        with contextlib.suppress(OSError):  # another process may be removing it
            size = sum(file.stat().st_size for file in place.iterdir())
            yield result.stat().st_mtime, size, place


def _abandoned(folder: Path) -> Iterator[Path]:
    for left in folder.glob(f"??/{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                yield left


def written(result: Mapping[str, Any], work: Path) -> None:
    """Write a result into a folder that has its program, where there is one."""
    sealed = dict(result)
    if result["status"] == "compiled":
        with contextlib.suppress(OSError, ValueError):  # then it is not read back
            sealed[SEAL] = _seal(work / PROGRAM)
    (work / RESULT).write_text(json.dumps(sealed), "utf-8")
