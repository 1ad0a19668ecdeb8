"""JSON lines: one object a line, found by the byte offsets of one scan."""

import json
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from muster.errors import BadInput, shorten
from muster.models.hf_config import printable
from muster.training.data.documents import (
    Document,
    as_document,
    check_characters,
    decode,
    no_such_key,
    reading,
    reason,
)

CODECS = {".gz": "gzip", ".zst": "zstd"}
CHUNK_BYTES = 16 * 1024**2
NEWLINE = 0x0A
BLANK = (0x0D, 0x20)  # what a line of one byte may hold and still be empty


class JsonLines:
    """The documents of one file of JSON lines; empty lines are no documents."""

    def __init__(self, path: Path, *, text_key: str) -> None:
        """Map the file at `path` into memory, unpacked first if it is compressed, and scan it.

        Raises:
            BadInput: unreadable, without a line, or its first line has no `text_key`.
        """
        self._path = path
        self._text_key = text_key
        self._bytes = _unpacked(path) if path.suffix in CODECS else _mapped(path)
        self._bounds = line_bounds(self._bytes)
        if not len(self):
            raise BadInput(f"{printable(path)} is empty; it has no line with an object")
        self[0]

    @property
    def size(self) -> int:
        """Bytes of the file, unpacked."""
        return len(self._bytes)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Document:
        start, end = (int(bound) for bound in self._bounds[index : index + 2])
        content = self._bytes[start:end].rstrip()
        try:
            record = json.loads(decode(content, where="the line", first=start == 0))
        except json.JSONDecodeError as error:
            raise BadInput(
                f"{self._where(start)} is not valid JSON: column {error.colno}: {error.msg}"
            ) from None
        except BadInput:
            raise BadInput(f"{self._where(start)} is not UTF-8 text") from None
        except (RecursionError, ValueError):
            raise BadInput(
                f"{self._where(start)} is nested too deep or a number too long"
            ) from None
        if not isinstance(record, dict):
            raise BadInput(f"{self._where(start)} holds {shorten(record)}, not an object")
        if self._text_key not in record:
            raise no_such_key(self._text_key, list(record), where=self._where(start))
        value = record[self._text_key]
        if isinstance(value, str) and not value.isascii():
            check_characters(value, lambda: self._where(start))
        if value is None or isinstance(value, str):  # most of them; spares counting lines
            return Document(content=value or "")
        return as_document(value, text_key=self._text_key, where=self._where(start))

    def where(self, index: int) -> str:
        """The file and the line of a document."""
        return self._where(int(self._bounds[index]))

    def _where(self, start: int) -> str:
        """The file and the number of the line at byte `start`; counted only for an error."""
        before = sum(
            self._bytes[at : min(at + CHUNK_BYTES, start)].count(b"\n")
            for at in range(0, start, CHUNK_BYTES)
        )
        return f"{printable(self._path)}: line {before + 1}"


def line_bounds(content: mmap.mmap | bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    r"""Where each line that is not empty starts, and where the last one ends.

    >>> line_bounds(b"{}\n\n[1]\r\n\r\n{}").tolist()
    [0, 4, 11, 13]
    """
    pieces = list(_newlines(content))
    ends = np.concatenate([*pieces, [len(content)]]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    if len(content):
        heads = np.frombuffer(content, np.uint8)[np.minimum(starts, len(content) - 1)]
        lengths = np.where((lengths == 1) & np.isin(heads, BLANK), 0, lengths)
    return np.append(starts[lengths > 0], len(content))


def _newlines(content: mmap.mmap | bytes) -> Iterator[np.ndarray]:
    """The positions of all line ends, chunk by chunk."""
    for at in range(0, len(content), CHUNK_BYTES):
        count = min(CHUNK_BYTES, len(content) - at)
        yield np.flatnonzero(np.frombuffer(content, np.uint8, count, at) == NEWLINE) + at


def _mapped(path: Path) -> mmap.mmap | bytes:
    """The file's bytes, mapped into memory (nothing to map in an empty file)."""
    with reading(path), path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _unpacked(path: Path) -> mmap.mmap | bytes:
    """The decompressed bytes, in a temporary file without a name that goes with the mapping."""
    codec = CODECS[path.suffix]
    with reading(path):
        packed = pa.OSFile(str(path))
    try:
        with tempfile.TemporaryFile() as file, pa.CompressedInputStream(packed, codec) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(
            f"cannot unpack {printable(path)} as {codec} into {tempfile.gettempdir()}"
            f" (TMPDIR names another folder): {reason(error)}"
        ) from None
