"""Small corpora in every format, and what is common to the tests of data."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from array_record.python import array_record_module

from muster.training.data import DataConfig, Stream, open_stream

TEXTS = [
    "One line.",
    "Zwei Zeilen:\nGrüße aus Köln, 你好, 🙂.\n",
    'Quotes " and \\ and a tab\t.',
    "  spaces kept  ",
    "last",
]


def write_text(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:04}.txt").write_text(text, newline="")
    return folder


def write_jsonl(folder: Path, texts: Sequence[str], *, key: str = "text") -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(jsonl(texts, key=key))
    return path


def jsonl(texts: Sequence[str], *, key: str = "text") -> bytes:
    lines = [json.dumps({"id": number, key: text}) for number, text in enumerate(texts)]
    return "\n".join(lines).encode()


def write_jsonl_gz(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "data.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(texts)))
    return path


def write_jsonl_zst(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "data.jsonl.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(jsonl(texts))
    return path


def write_parquet(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "data.parquet"
    table = pa.table({"id": range(len(texts)), "text": list(texts)})
    pq.write_table(table, path, row_group_size=2)
    return path


def write_array_record(folder: Path, texts: Sequence[str]) -> Path:
    path = folder / "data.arrayrecord"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()
    return path


def write_saved_dataset(folder: Path, texts: Sequence[str]) -> Path:
    """Two Arrow files, as a dataset saved in two shards has."""
    folder = folder / "saved"
    folder.mkdir()
    half = len(texts) // 2
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (texts[:half], texts[half:]), strict=True):
        table = pa.table({"text": list(part), "id": range(len(part))})
        with pa.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_dataset_of_splits(folder: Path, texts: Sequence[str]) -> Path:
    splits = folder / "splits"
    splits.mkdir()
    for split, part in (("test", ["of the test split"] * 2), ("train", texts)):
        (splits / "made").mkdir()
        write_saved_dataset(splits / "made", part).rename(splits / split)
        (splits / "made").rmdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    return splits


WRITERS: dict[str, Callable[[Path, Sequence[str]], Path]] = {
    "text": lambda folder, texts: write_text(folder / "texts", texts),
    "jsonl": write_jsonl,
    "jsonl.gz": write_jsonl_gz,
    "jsonl.zst": write_jsonl_zst,
    "parquet": write_parquet,
    "arrayrecord": write_array_record,
    "saved": write_saved_dataset,
    "splits": write_dataset_of_splits,
}


def write_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of 300 ids, learnt from a few words, with one special token."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"the document number {n} of many" for n in range(50)], trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def words(number: int) -> str:
    """A document of its own for every number, of 1 to 60 words."""
    return f"document {number} " + f"w{number} " * (number * 7919 % 60) + "end"


def opened(
    path: Path, *, vocab_size: int = 300, process: int = 0, processes: int = 1, **settings: Any
) -> Stream:
    """A stream over `path` of 8 rows of 64 tokens, or what `settings` say."""
    config = DataConfig(
        **{"paths": (path,), "sequence_length": 64, "batch_sequences": 8, **settings}
    )
    return open_stream(config, vocab_size, process_index=process, process_count=processes)


def read_on(stream: Stream, count: int) -> None:
    """Read `count` batches, or up to an error."""
    for _ in range(count):
        next(stream)
