"""Parquet: each row group is decoded once, on first touch, and kept unpacked in a temporary file.

Parquet has no random access within a row group, and a shuffle touches them in any order: decoding
one per document would read thousands of documents for each. The temporary file holds bytes alone;
memory holds one offset a document.
"""

import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from muster.errors import BadInput
from muster.models.hf_config import printable
from muster.training.data.documents import Document, decode, no_such_key, reason


class Spool:
    """Bytes in a temporary file without a name, appended and read at offsets."""

    def __init__(self) -> None:
        """Create the file; it goes when this object does."""
        with tempfile.TemporaryFile() as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._end = 0

    def append(self, content: memoryview) -> int:
        """Write `content` behind the rest and return its offset."""
        start = self._end
        try:
            while content.nbytes:
                written = os.pwrite(self._descriptor, content, self._end)
                content = content[written:]
                self._end += written
        except OSError as error:
            raise BadInput(
                f"cannot unpack Parquet into {tempfile.gettempdir()}: {reason(error)};"
                " TMPDIR names another folder"
            ) from None
        return start

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes at `offset`."""
        return os.pread(self._descriptor, count, offset)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """One row group in the spool: `bounds` [rows + 1] are offsets of bytes."""

    bounds: np.ndarray[tuple[int], np.dtype[np.int64]]
    holds_ids: bool


class ParquetDocuments:
    """The documents of one Parquet file: a column of text or of lists of token ids."""

    def __init__(self, path: Path, *, text_key: str, spool: Spool) -> None:
        """Read the file's metadata alone.

        Raises:
            BadInput: not Parquet, or without a column `text_key` of text or ids.
        """
        self._path = path
        self._text_key = text_key
        self._spool = spool
        try:
            with pq.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
        except (OSError, pa.ArrowInvalid) as error:
            raise BadInput(f"cannot read {printable(path)} as Parquet: {reason(error)}") from None
        if text_key not in schema.names:
            raise no_such_key(text_key, schema.names, where=printable(path))
        kind = schema.field(text_key).type
        self._holds_ids = is_list_of_ids(kind)
        if not (self._holds_ids or is_text(kind)):
            raise BadInput(
                f"{printable(path)}: column {text_key!r} holds {kind}, not text or lists of ids"
            )
        if not metadata.num_rows:
            raise BadInput(f"{printable(path)} is empty; it has no rows")
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._groups: dict[int, _Group] = {}
        self.size = sum(_column_bytes(group, text_key) for group in groups)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Document:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = self._unpack(number)
        row = index - int(self._starts[number])
        start, end = (int(bound) for bound in group.bounds[row : row + 2])
        content = self._spool.read(start, end - start)
        if group.holds_ids:
            return Document(content=np.frombuffer(content, np.int32))
        return Document(content=decode(content, where=self.where(index)))

    def where(self, index: int) -> str:
        """The file and the row of a document."""
        return f"{printable(self._path)}: row {index}"

    def _unpack(self, number: int) -> _Group:
        """Decode one row group's column into the spool."""
        try:
            with pq.ParquetFile(self._path) as file:
                table = file.read_row_group(number, columns=[self._text_key])
            column = table.column(self._text_key).combine_chunks()
            bounds, content = _ids(column) if self._holds_ids else text_bytes(column)
        except (OSError, pa.ArrowInvalid) as error:
            raise BadInput(
                f"cannot read row group {number} of {printable(self._path)}: {reason(error)}"
            ) from None
        at = self._spool.append(content)
        return _Group(bounds=bounds + at, holds_ids=self._holds_ids)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text, plainly or as a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list_of_ids(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of integers."""
    lists = (
        pa.types.is_list(kind),
        pa.types.is_large_list(kind),
        pa.types.is_fixed_size_list(kind),
    )
    return any(lists) and bool(pa.types.is_integer(kind.value_type))


def text_bytes(column: pa.Array) -> tuple[np.ndarray, memoryview]:
    """Bounds [rows + 1] in bytes, and the bytes; no value is an empty text."""
    text = pc.fill_null(column.cast(pa.large_string()), "")
    _, offsets, content = text.buffers()
    bounds = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    view = memoryview(content if content is not None else b"").cast("B")
    return bounds - bounds[0], view[int(bounds[0]) : int(bounds[-1])]


def _ids(column: pa.Array) -> tuple[np.ndarray, memoryview]:
    """Bounds [rows + 1] in bytes, and the bytes of int32 ids; no value is an empty list."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    ids = np.asarray(column.flatten().cast(pa.int32()), np.int32)
    bounds = np.concatenate([[0], np.cumsum(lengths)]) * ids.itemsize
    return bounds, memoryview(np.ascontiguousarray(ids)).cast("B")


def _column_bytes(group: pq.RowGroupMetaData, text_key: str) -> int:
    """Bytes of the column in a row group, uncompressed."""
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(
        column.total_uncompressed_size
        for column in columns
        if column.path_in_schema.split(".")[0] == text_key
    )
