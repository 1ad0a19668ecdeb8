"""The folder of a run's checkpoints: what is in it, whether it is whole, whether there is room.

    RUN_DIR/checkpoints/
      200/                            one committed step
        manifest.json                 what belongs to it: every file with its size and CRC-32
        params/ optimizer/ data/ meta/
        commit_success.txt            written last, before the folder gets its name
      300.orbax-checkpoint-tmp/       a save in progress, or one that was cut short
      250.aside/                      damaged, or left behind by a run that went back

No array library here: everything is files, sizes and checksums.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from muster.errors import BadInput, MusterError
from muster.units import format_bytes

FORMAT = 1  # of manifest.json; a reader refuses what it does not know
MANIFEST = "manifest.json"
COMMIT_MARKER = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that orbax still writes
ASIDE = ".aside"

PARAMS = "params"
OPTIMIZER = "optimizer"
DATA = "data"
META = "meta"

CHUNK_BYTES = 1 << 24  # read at once for a checksum; 16 MiB keeps a disk busy and memory small


class SaveFailed(MusterError):
    """A checkpoint could not be written; those saved before are untouched."""


class Damaged(Exception):
    """A step's folder is not what was written; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What belongs to one step.

    Attributes:
        step: steps trained.
        items: parts that were saved, of params, optimizer, data and meta.
        vocab_size: rows of the vocabulary that are real; the saved arrays may have zero rows more.
        files: path inside the step's folder -> (bytes, CRC-32 or None where it was not taken).
        format: version of this record.
    """

    step: int
    items: tuple[str, ...]
    vocab_size: int | None
    files: Mapping[str, tuple[int, int | None]]
    format: int = FORMAT


def write_manifest(
    folder: Path, *, step: int, items: tuple[str, ...], vocab_size: int | None, checksums: bool
) -> None:
    """Record every file under a step's folder that is about to be committed.

    Reads back what was just written, which the page cache mostly still holds: CRC-32 runs at
    several GB/s on one core, outside the interpreter's lock.
    """
    files = {
        path.relative_to(folder).as_posix(): (
            path.stat().st_size,
            crc32_of(path) if checksums else None,
        )
        for item in items
        for path in sorted((folder / item).rglob("*"))
        if path.is_file()
    }
    manifest = Manifest(step=step, items=items, vocab_size=vocab_size, files=files)
    with (folder / MANIFEST).open("w") as file:
        json.dump(asdict(manifest), file)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """The record of a committed step.

    Raises:
        Damaged: the step was not committed, or its record cannot be read.
    """
    for needed in (COMMIT_MARKER, MANIFEST):
        if not (folder / needed).is_file():
            raise Damaged(f"half-written, it has no {needed}")
    try:
        record: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        if record["format"] != FORMAT:
            raise Damaged(f"{MANIFEST} has format {record['format']}, known is {FORMAT}")
        return Manifest(
            step=int(record["step"]),
            items=tuple(record["items"]),
            vocab_size=record["vocab_size"],
            files={name: (int(size), crc) for name, (size, crc) in record["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from error


def check_files(
    folder: Path, manifest: Manifest, items: Iterable[str], *, share: int = 0, of: int = 1
) -> None:
    """Check sizes of all files of the items, and the checksums of every `of`-th from `share`.

    What this cannot see: a file whose content changed and whose CRC-32 did not (1 in 4 billion),
    and any changed byte where the checkpoint was saved with `checksums=False`.

    Raises:
        Damaged: a file is missing, has another size or another content.
    """
    wanted = tuple(items)
    files = [name for name in sorted(manifest.files) if name.split("/")[0] in wanted]
    for name in files:
        size, _ = manifest.files[name]
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise Damaged(f"{name} is missing") from error
        if found != size:
            raise Damaged(f"{name} has {found} bytes instead of {size}")
    for name in files[share::of]:
        _, crc = manifest.files[name]
        try:
            if crc is not None and crc32_of(folder / name) != crc:
                raise Damaged(f"{name} has other content than was written")
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error


def crc32_of(path: Path) -> int:
    """CRC-32 (the zlib one) of a file's content."""
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def step_folders(folder: Path) -> list[int]:
    """Steps whose folder has its final name, rising; whether they are whole is not looked at."""
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot read the checkpoints in {folder}: {error.strerror}") from error


def unfinished(folder: Path) -> list[str]:
    """Names of folders that a killed save left behind (or that one still writes)."""
    return sorted(path.name for path in folder.glob(f"*{UNFINISHED}*"))


def set_aside(folder: Path, step: int) -> None:
    """Rename a step's folder so that its number is free; an older one set aside makes room."""
    target = folder / f"{step}{ASIDE}"
    if target.exists():
        shutil.rmtree(target)
    (folder / str(step)).rename(target)


def check_no_address(folder: Path) -> None:
    """Refuse `gs://bucket/run` and its like, which a `Path` takes for a relative folder.

    Raises:
        BadInput: it is the address of something that is not mounted.
    """
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(folder)):
        raise BadInput(f"{folder} is an address; mount the bucket and name the folder instead")


def check_no_backslash(folder: Path) -> None:
    """Refuse a path that tensorstore would take for another: it reads a backslash as a slash.

    Raises:
        BadInput: there is a backslash in it.
    """
    if "\\" in str(folder):
        raise BadInput(
            f"cannot keep checkpoints in {folder}: the library that writes them takes a backslash"
            " for a slash; name a folder without one"
        )


def check_room(folder: Path, bytes_needed: int) -> None:
    """Make sure that two checkpoints of `bytes_needed` can be written; creates the folder.

    Two, because the one before is deleted only after the next is committed. A folder that is
    refused is not left behind.

    Raises:
        BadInput: it is no folder, cannot be written to, or its disk has too little space.
    """
    with removed_if_refused(folder):
        _check_room(folder, bytes_needed)


@contextmanager
def removed_if_refused(folder: Path) -> Iterator[None]:
    """Where what is done inside fails, remove the folder and its parents that it made, if empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):  # never made, or something is in it
                path.rmdir()
        raise


def _check_room(folder: Path, bytes_needed: int) -> None:
    probe = folder / f".writable.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"cannot save checkpoints in {folder}: it is not a folder") from error
    except OSError as error:
        raise BadInput(f"cannot save checkpoints in {folder}: {error.strerror}") from error
    if free < 2 * bytes_needed:
        raise BadInput(
            f"no room for checkpoints in {folder}: two take {format_bytes(2 * bytes_needed)},"
            f" {format_bytes(free)} are free; name a folder on a larger disk"
        )
