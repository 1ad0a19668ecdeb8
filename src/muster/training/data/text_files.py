"""Plain text files; long ones are cut into pieces at paragraph or line ends.

The rule: a file is cut near every multiple c of `piece_bytes` that leaves a whole piece behind it,
so that pieces have less than two times `piece_bytes` and none is empty. The cut lies behind the
first empty line that starts within the `window` bytes after c; where there is none, behind the
first line end; where there is none, before the first space; else at the first character that
starts at c or later. Each cut depends on the bytes around it alone, so that a piece is found
without reading the others.
"""

import codecs
from pathlib import Path
from typing import BinaryIO

from muster.models.hf_config import printable
from muster.training.data.documents import Document, decode, reading

SNIFFED_BYTES = 8192
MOST_WINDOW_BYTES = 16 * 1024
LEAST_PIECE_BYTES = 4 * 1024
USUAL_PIECE_BYTES = 64 * 1024
BYTES_PER_TOKEN = 4  # of English text under vocabularies of 32 to 256 thousand
PIECES_PER_ROW = 4


def piece_bytes(*, total_bytes: int, rows: int, sequence_length: int) -> int:
    """The size of the pieces that plain text is cut into.

    Large enough for two rows (`2 T` tokens), so that long context is learnt from text that belongs
    together; small enough that every row of the batch gets several pieces of a small corpus.

    >>> piece_bytes(total_bytes=10**9, rows=8, sequence_length=4096)
    65536
    >>> piece_bytes(total_bytes=10**9, rows=8, sequence_length=131072)
    1048576
    >>> piece_bytes(total_bytes=1_000_000, rows=32, sequence_length=4096)
    7812
    """
    largest = max(USUAL_PIECE_BYTES, 2 * sequence_length * BYTES_PER_TOKEN)
    return min(largest, max(LEAST_PIECE_BYTES, total_bytes // (PIECES_PER_ROW * rows)))


class TextFile:
    """The pieces of one file of text."""

    def __init__(self, path: Path, *, size: int, piece: int) -> None:
        """Cut the file at `path`, of `size` bytes, into pieces of about `piece` bytes."""
        self._path = path
        self._size = size
        self._piece = piece

    def __len__(self) -> int:
        return max(1, self._size // self._piece)

    def __getitem__(self, index: int) -> Document:
        with reading(self._path), self._path.open("rb") as file:
            start = self._cut(file, index)
            end = self._cut(file, index + 1)
            file.seek(start)
            content = file.read(end - start)
        where = printable(self._path)
        if start:
            where += f" (from byte {start})"
        text = decode(content, where=where, first=start == 0)
        return Document(content=text, ends=end == self._size)

    def where(self, index: int) -> str:
        """The file and the piece of it."""
        return f"{printable(self._path)} (from about byte {index * self._piece})"

    def _cut(self, file: BinaryIO, index: int) -> int:
        """Where piece `index` starts, in bytes."""
        near = index * self._piece
        if index in (0, len(self)):
            return self._size if index else 0
        file.seek(near)
        return min(near + best_cut(file.read(window(self._piece))), self._size)


def window(piece: int) -> int:
    """How far behind a multiple of `piece` a cut may lie; half of it keeps the cuts in order."""
    return min(piece // 2, MOST_WINDOW_BYTES)


def best_cut(ahead: bytes) -> int:
    r"""Where to cut within the bytes that lie ahead.

    >>> [best_cut(ahead) for ahead in (b"of 1.\n\nTwo", b"of 1.\nTwo", b"of 1", b"one")]
    [7, 6, 2, 0]
    >>> best_cut("\u00e9t\u00e9".encode()[1:])
    1
    """
    for mark in (b"\n\n", b"\r\n\r\n", b"\n"):
        found = ahead.find(mark)
        if found >= 0:
            return found + len(mark)
    space = ahead.find(b" ")
    if space >= 0:
        return space
    return next((at for at, byte in enumerate(ahead[:4]) if byte & 0xC0 != 0x80), len(ahead[:4]))


def looks_like(path: Path) -> str:
    """Whether the head of a file is "text", "binary" (a NUL byte) or "not UTF-8"."""
    with reading(path), path.open("rb") as file:
        head = file.read(SNIFFED_BYTES)
    if b"\0" in head:
        return "binary"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < SNIFFED_BYTES)
    except UnicodeDecodeError:
        return "not UTF-8"
    return "text"
