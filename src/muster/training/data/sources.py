"""From the user's paths to one corpus: documents by number, and what they are.

paths -> files with documents -> a source per file -> all of them as one
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.errors import BadInput
from muster.training.data.config import DataConfig
from muster.training.data.documents import Joined, Source
from muster.training.data.found import Format, Found, find
from muster.training.data.json_lines import JsonLines
from muster.training.data.parquet import ParquetDocuments, Spool
from muster.training.data.record_files import ArrayRecords, SavedDataset
from muster.training.data.synthetic import Synthetic
from muster.training.data.text_files import TextFile, piece_bytes

SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a corpus is.

    Attributes:
        documents: documents, a piece of a long text counted as one.
        bytes: bytes of text or of the files that hold it, unpacked where that is known.
        files: number of files by format.
        skipped: number of files in folders that were passed over, by the reason.
        fingerprint: of the files' names, formats, sizes and numbers of documents, in order; another
            one on resume says that the data changed.
    """

    documents: int
    bytes: int
    files: Mapping[str, int]
    skipped: Mapping[str, int]
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All documents by number, and their description."""

    source: Source
    description: Description


def open_corpus(config: DataConfig, *, vocab_size: int) -> Corpus:
    """Open everything that `config.paths` name, or the random documents of a benchmark.

    Raises:
        BadInput: as each format says.
    """
    if config.synthetic:
        return _synthetic(config, vocab_size)
    if not config.paths:
        raise BadInput("no data: give text, .jsonl, .parquet or .arrayrecord files, or folders")
    found, skipped = find(tuple(Path(path) for path in config.paths))
    piece = piece_bytes(
        total_bytes=sum(file.size for file in found if file.format is Format.TEXT),
        rows=config.batch_sequences,
        sequence_length=config.sequence_length,
    )
    spool = Spool()
    sources: list[Source] = []
    digest = hashlib.sha256(config.text_key.encode())
    total_bytes = 0
    for file in found:
        source, size = _open(file, text_key=config.text_key, piece=piece, spool=spool)
        sources.append(source)
        total_bytes += size
        digest.update(f"\n{file.format}\t{file.name}\t{size}\t{len(source)}".encode())
    joined = Joined(sources)
    return Corpus(
        source=joined,
        description=Description(
            documents=len(joined),
            bytes=total_bytes,
            files=dict(Counter(file.format.value for file in found)),
            skipped=dict(skipped),
            fingerprint=digest.hexdigest()[:FINGERPRINT_DIGITS],
        ),
    )


FINGERPRINT_DIGITS = 16


def _open(file: Found, *, text_key: str, piece: int, spool: Spool) -> tuple[Source, int]:
    """The documents of one file and its bytes, unpacked where that is known."""
    match file.format:
        case Format.JSON_LINES:
            lines = JsonLines(file.path, text_key=text_key)
            return lines, lines.size
        case Format.PARQUET:
            table = ParquetDocuments(file.path, text_key=text_key, spool=spool)
            return table, table.size
        case Format.ARRAY_RECORD:
            return ArrayRecords(file.path), file.size
        case Format.SAVED_DATASET:
            dataset = SavedDataset(file.path, text_key=text_key)
            return dataset, dataset.size
        case Format.TEXT:
            return TextFile(file.path, size=file.size, piece=piece), file.size


def _synthetic(config: DataConfig, vocab_size: int) -> Corpus:
    """Random documents, each as long as a row."""
    source = Synthetic(length=config.sequence_length, vocab_size=vocab_size, seed=config.seed)
    return Corpus(
        source=source,
        description=Description(
            documents=len(source),
            bytes=0,
            files={},
            skipped={},
            fingerprint=f"{SYNTHETIC}-{config.seed}",
        ),
    )
