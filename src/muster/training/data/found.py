"""Which files the user's paths mean, and in which format each one is."""

import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from muster.errors import BadInput
from muster.models.hf_config import printable
from muster.training.data.documents import reading
from muster.training.data.record_files import saved_dataset_folder
from muster.training.data.text_files import looks_like


class Format(StrEnum):
    """The formats of files that documents are read from."""

    TEXT = "text"
    JSON_LINES = "JSON lines"
    PARQUET = "Parquet"
    ARRAY_RECORD = "ArrayRecord"
    SAVED_DATASET = "saved dataset"


FORMAT_OF_ENDING = {
    ".jsonl": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".jsonl.gz": Format.JSON_LINES,
    ".jsonl.zst": Format.JSON_LINES,
    ".ndjson.gz": Format.JSON_LINES,
    ".ndjson.zst": Format.JSON_LINES,
    ".parquet": Format.PARQUET,
    ".arrayrecord": Format.ARRAY_RECORD,
    ".array_record": Format.ARRAY_RECORD,
}
TEXT_ENDINGS = frozenset((".txt", ".text", ".md", ".rst", ".tex", ".py", ".html"))


@dataclass(frozen=True, kw_only=True)
class Found:
    """One file (or folder of a saved dataset) with documents.

    Attributes:
        path: where it is.
        name: its path within the folder that the user gave, so that a moved corpus is the same.
        format: what it is.
        size: bytes on disk; 0 for a folder.
    """

    path: Path
    name: str
    format: Format
    size: int


def find(paths: Sequence[Path]) -> tuple[list[Found], Counter[str]]:
    """All files with documents under `paths`, in an order that every host finds alike.

    Returns:
        The files, and how many others in folders were passed over, by the reason.

    Raises:
        BadInput: a path does not exist, cannot be read, is empty, or holds nothing to train on.
    """
    found: list[Found] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        with reading(path):
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        files = list(_in_folder(path, path, skipped)) if is_folder else [_given_file(path)]
        if not files:
            raise BadInput(f"no data in the folder {printable(path)}{_why(skipped)}")
        found += files
    return found, skipped


def _why(skipped: Counter[str]) -> str:
    """What there was instead of data."""
    if not skipped:
        return "; it holds no files"
    return f"; passed over: {', '.join(f'{count} {why}' for why, count in sorted(skipped.items()))}"


def _in_folder(folder: Path, root: Path, skipped: Counter[str]) -> Iterator[Found]:
    """The files under a folder, by name; those that are passed over are counted by reason."""
    saved = saved_dataset_folder(folder)
    if saved is not None:
        name = saved.relative_to(root).as_posix()
        yield Found(path=saved, name=name, format=Format.SAVED_DATASET, size=0)
        return
    with reading(folder):
        entries = sorted(folder.iterdir())
    for entry in entries:
        if entry.name.startswith("."):
            skipped["hidden"] += 1
        elif entry.is_dir():
            if entry.is_symlink():
                skipped["linked folders"] += 1
            else:
                yield from _in_folder(entry, root, skipped)
        else:
            with reading(entry):
                status = entry.stat()
            why_not = _why_not(entry, status.st_mode, status.st_size)
            if why_not is not None:
                skipped[why_not] += 1
            else:
                name = entry.relative_to(root).as_posix()
                yield Found(path=entry, name=name, format=format_of(entry), size=status.st_size)


def _why_not(path: Path, mode: int, size: int) -> str | None:
    """Why a file of a folder is no data; None if it is."""
    if not stat.S_ISREG(mode):
        return "special files"
    if not size:
        return "empty"
    if format_of(path) != Format.TEXT:
        return None
    look = looks_like(path)
    if look == "not UTF-8" and path.suffix.lower() in TEXT_ENDINGS:
        return None  # it calls itself text, so reading it is to say what is wrong with it
    return None if look == "text" else "binary"


def _given_file(path: Path) -> Found:
    """A file that the user named; what a folder would pass over is an error here."""
    with reading(path):
        status = path.stat()
    where = printable(path)
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{where} is not a regular file; give files or folders")
    if not status.st_size:
        raise BadInput(f"{where} is empty")
    kind = format_of(path)
    if path.suffix.lower() == ".json":
        raise BadInput(f"{where} is JSON; training reads JSON lines: one object a line, in .jsonl")
    if path.suffix.lower() == ".arrow":
        raise BadInput(f"{where} is part of a saved dataset; give the folder that it is in")
    if kind == Format.TEXT and looks_like(path) == "binary":
        raise BadInput(
            f"{where} is binary; training reads text, {', '.join(sorted(FORMAT_OF_ENDING))} and"
            " datasets saved on disk"
        )
    return Found(path=path, name=path.name, format=kind, size=status.st_size)


def format_of(path: Path) -> Format:
    """The format that a file's ending says; text if it says nothing else.

    >>> format_of(Path("a.b.jsonl.GZ")), format_of(Path("notes.md")), format_of(Path("x.tar.gz"))
    (<Format.JSON_LINES: 'JSON lines'>, <Format.TEXT: 'text'>, <Format.TEXT: 'text'>)
    """
    endings = [suffix.lower() for suffix in path.suffixes[-2:]]
    for ending in ("".join(endings), endings[-1] if endings else ""):
        if ending in FORMAT_OF_ENDING:
            return FORMAT_OF_ENDING[ending]
    return Format.TEXT
