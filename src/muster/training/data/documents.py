"""What every source of documents gives: text, or ready token ids, by a number."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from muster.errors import BadInput, shorten
from muster.models.hf_config import printable

type Ids = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document, or a piece of a long one.

    Attributes:
        content: the text, or token ids [n] where the data was tokenized before.
        ends: the document ends with this piece, so an end-of-document token may follow.
    """

    content: str | Ids
    ends: bool = True


class Source(Protocol):
    """Documents by number; the same number always gives the same document."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Document: ...

    def where(self, index: int, /) -> str:
        """Where a document lies, for an error about it."""
        ...


class Joined:
    """Sources one behind the other, as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Join `sources` in their order."""
        self._sources = sources
        self._starts = list(accumulate((len(source) for source in sources), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Document:
        source, within = self._of(index)
        return source[within]

    def where(self, index: int) -> str:
        """Where a document lies in its source."""
        source, within = self._of(index)
        return source.where(within)

    def _of(self, index: int) -> tuple[Source, int]:
        number = bisect_right(self._starts, index) - 1
        return self._sources[number], index - self._starts[number]


def as_document(value: object, *, text_key: str, where: str) -> Document:
    """The document that a field of a record holds: text, a list of token ids, or nothing.

    A field without a value is an empty document, which the stream passes over.

    Raises:
        BadInput: the field holds anything else.
    """
    if value is None:
        return Document(content="")
    if isinstance(value, str):
        return Document(content=value)
    if isinstance(value, list) and all(type(item) is int for item in value):
        try:
            return Document(content=np.array(value, np.int32))
        except OverflowError:
            raise BadInput(f"{where}: {text_key!r} holds ids beyond 32 bits") from None
    raise BadInput(f"{where}: {text_key!r} holds {shorten(value)}, not text or a list of token ids")


def no_such_key(text_key: str, keys: Sequence[str], *, where: str) -> BadInput:
    """The error for a record without `text_key`, which names the `keys` that it has."""
    if not keys:
        return BadInput(f"{where} has no {text_key!r} and no other key")
    listed = ", ".join(repr(key) for key in keys[:MOST_KEYS_SHOWN])
    more = ", ..." if len(keys) > MOST_KEYS_SHOWN else ""
    return BadInput(
        f"{where} has no {text_key!r}; name the one that holds the text with --text-key,"
        f" of {listed}{more}"
    )


MOST_KEYS_SHOWN = 12


def check_characters(text: str, where: Callable[[], str]) -> None:
    r"""Refuse half a character, which JSON can spell (`"\ud800"`) and no encoding can hold.

    Raises:
        BadInput: there is one in the text; `where` says in which.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise BadInput(
            f"{where()} holds {half}, half a character (a lone surrogate), which is no text;"
            " take it out of the data"
        ) from None


def decode(content: bytes, *, where: str, first: bool = False) -> str:
    """UTF-8 to text; a byte order mark in front of the `first` bytes of a file is dropped.

    Raises:
        BadInput: the bytes are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{where} is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x};"
            " convert it, or leave it out"
        ) from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the file system says about `path` into the user's error."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"no file or folder {printable(path)}") from None
    except OSError as error:
        raise BadInput(f"cannot read {printable(path)}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """What a library or the system says, on one short line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= MOST_OF_A_REASON else line[: MOST_OF_A_REASON - 3] + "..."


MOST_OF_A_REASON = 160
