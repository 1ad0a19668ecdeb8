"""Writing safetensors files a piece at a time.

The library's own writer takes all tensors of a file at once, which is up to 5 GB in memory; here
the header goes first and each tensor's bytes to its place when they are there. The format: eight
bytes of the header's length, the header (JSON, padded with spaces to a multiple of eight), then
the tensors one after the other (https://github.com/huggingface/safetensors, section Format).
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from muster.training.huggingface.folder import INDEX_FILE, SINGLE_FILE

ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor to write: its name, its shape and its format as safetensors codes it."""

    name: str
    shape: tuple[int, ...]
    code: str
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tensor's numbers go: bytes from the start of a file."""

    file: Path
    offset: int


def shards_of(entries: Iterable[Entry], max_bytes: float) -> list[list[Entry]]:
    """Cut a list of tensors into files of at most `max_bytes`, or of one tensor above that."""
    shards: list[list[Entry]] = []
    room = 0.0
    for entry in entries:
        if not shards or entry.nbytes > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(entry)
        room -= entry.nbytes
    return shards


def start_files(folder: Path, shards: list[list[Entry]]) -> dict[str, Place]:
    """Write every file with its header and no numbers yet, and the index where there are many.

    Returns:
        Where each tensor's numbers belong.
    """
    number = len(shards)
    names = [f"model-{n + 1:05}-of-{number:05}.safetensors" for n in range(number)]
    files = [folder / name for name in (names if number > 1 else [SINGLE_FILE])]
    places: dict[str, Place] = {}
    for file, entries in zip(files, shards, strict=True):
        places |= _start_file(file, entries)
    if number > 1:
        total = sum(entry.nbytes for entries in shards for entry in entries)
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: places[name].file.name for name in sorted(places)},
        }
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return places


def _start_file(file: Path, entries: list[Entry]) -> dict[str, Place]:
    # `from_pretrained` refuses a file that does not say which framework's layout it has.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begins: dict[str, int] = {}
    end = 0
    for entry in entries:
        begins[entry.name], end = end, end + entry.nbytes
        header[entry.name] = {
            "dtype": entry.code,
            "shape": list(entry.shape),
            "data_offsets": [begins[entry.name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        start = stream.tell()
        stream.truncate(start + end)
    return {name: Place(file=file, offset=start + begin) for name, begin in begins.items()}
