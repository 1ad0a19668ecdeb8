"""Every way in which data cannot be used is one line that names the nearest right thing."""

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.errors import BadInput
from tests.training.data.corpora import (
    TEXTS,
    opened,
    read_on,
    words,
    write_array_record,
    write_dataset_of_splits,
    write_jsonl,
    write_parquet,
    write_saved_dataset,
    write_text,
)

DOCUMENTS = [words(number) for number in range(60)]


def error(path: Path, **settings: Any) -> str:
    """The one line that opening `path` and reading on ends with."""
    with pytest.raises(BadInput) as caught, opened(path, **settings) as stream:
        read_on(stream, 100)
    message = str(caught.value)
    assert message.isprintable(), "more than one line"
    return message


def file(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def line(record: object) -> str:
    return json.dumps(record) + "\n"


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    assert re.fullmatch(r"no file or folder .*/absent\.txt", error(tmp_path / "absent.txt"))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert re.fullmatch(r"no data in the folder .*/empty; it holds no files", error(empty))
    file(empty, ".hidden", "x")
    file(empty, "a.bin", b"\0")
    assert error(empty).endswith("; passed over: 1 binary, 1 hidden")
    assert error(file(tmp_path, "a.txt", "")).endswith("a.txt is empty")
    assert error(file(tmp_path, "a.jsonl", "\n\n")).endswith(
        "a.jsonl is empty; it has no line with an object"
    )
    with pytest.raises(BadInput, match=r"^no data: give text, \.jsonl, \.parquet"):
        opened(tmp_path, paths=())


def test_files_that_are_no_data(tmp_path: Path) -> None:
    assert "is binary; training reads text, " in error(file(tmp_path, "a.png", b"\x89PNG\0"))
    assert "training reads JSON lines" in error(file(tmp_path, "a.json", "{}"))
    assert "give the folder that it is in" in error(file(tmp_path, "a.arrow", "x"))
    os.mkfifo(tmp_path / "pipe")
    assert error(tmp_path / "pipe").endswith("pipe is not a regular file; give files or folders")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert re.fullmatch(r"cannot read .*/loop: Too many levels.*", error(tmp_path / "loop"))


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_files_without_permission(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "x" * 1000)
    path.chmod(0)
    assert re.fullmatch(r"cannot read .*a\.txt: Permission denied", error(path))


def test_a_text_that_goes_away_is_said_to_be_missing(tmp_path: Path) -> None:
    folder = write_text(tmp_path / "texts", DOCUMENTS * 5)
    with opened(folder, batch_sequences=1) as stream:
        for path in folder.iterdir():
            path.unlink()
        with pytest.raises(BadInput, match=r"no file or folder .*\.txt"):
            read_on(stream, 1000)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    folder = write_text(tmp_path / "texts", DOCUMENTS)
    file(folder, "latin.txt", b"caf\xe9")
    assert re.search(r"latin\.txt is not UTF-8 text: byte 3 is 0xe9; convert it", error(folder))
    lines = line({"text": "x" * 2000}).encode()
    path = file(tmp_path, "a.jsonl", lines + b'\n{"text": "\xe9"}\n')
    assert error(path).endswith("a.jsonl: line 3 is not UTF-8 text")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ('{"text": "a"', r"line 2 is not valid JSON: column 13: .*"),
        ("[1]", r"line 2 holds \[1\], not an object"),
        ('{"text": 5}', r"line 2: 'text' holds 5, not text or a list of token ids"),
        ('{"text": [1, "a"]}', r"line 2: 'text' holds \[1, 'a'\], not text .*"),
        ('{"text": [99999999999]}', r"line 2: 'text' holds ids beyond 32 bits"),
        (r'{"text": "\ud800 hello"}', r"line 2 holds \\ud800, half a character .* of the data"),
        ('{"body": "a"}', r"line 2 has no 'text'; name the one .* --text-key, of 'body'"),
        ("[" * 100_000, r"line 2 is nested too deep or a number too long"),
    ],
)
def test_lines_that_hold_no_document(second: str, expected: str, tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", line({"text": "x" * 2000}) + second + "\n")
    assert re.fullmatch(rf".*/a\.jsonl: {expected}", error(path))


@pytest.mark.parametrize("write", [write_jsonl, write_parquet, write_saved_dataset])
def test_a_wrong_text_key_names_those_present(
    write: Callable[[Path, list[str]], Path], tmp_path: Path
) -> None:
    message = error(write(tmp_path, DOCUMENTS), text_key="body")
    assert "has no 'body'; name the one that holds the text with --text-key, of " in message
    assert "'text'" in message.split("--text-key")[1]
    assert "'id'" in message


def test_many_keys_are_cut_short(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", line({f"key{number}": 1 for number in range(50)}))
    assert error(path).endswith("'key11', ...")
    assert error(file(tmp_path, "b.jsonl", "{}")).endswith("has no 'text' and no other key")


def test_files_that_are_not_what_their_ending_says(tmp_path: Path) -> None:
    assert "as Parquet: " in error(file(tmp_path, "a.parquet", "no Parquet"))
    assert "ArrayRecord" in error(file(tmp_path, "a.arrayrecord", "no records"))
    assert "ArrayRecord" in error(file(tmp_path, "b.arrayrecord", "no records" * 10_000))
    assert re.search("cannot unpack .* as gzip into", error(file(tmp_path, "a.jsonl.gz", "x")))
    assert re.search("cannot unpack .* as zstd into", error(file(tmp_path, "a.jsonl.zst", "x")))
    packed = gzip.compress(os.urandom(10_000))
    assert "as gzip" in error(file(tmp_path, "cut.jsonl.gz", packed[: len(packed) // 2]))
    pq.write_table(pa.table({"text": [1.5]}), tmp_path / "numbers.parquet")
    assert "'text' holds double, not text" in error(tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    assert error(tmp_path / "none.parquet").endswith("is empty; it has no rows")


def test_records_that_are_not_text(tmp_path: Path) -> None:
    class Raw(str):
        __slots__ = ()

        def encode(self, *_: object) -> bytes:
            return b"\xff\xfe" * 1000

    path = write_array_record(tmp_path, [Raw()])
    assert "data.arrayrecord: record 0 is not UTF-8 text" in error(path)


def test_saved_datasets_that_lack_a_part(tmp_path: Path) -> None:
    folder = write_saved_dataset(tmp_path, TEXTS)
    (folder / "data-00001-of-00002.arrow").write_bytes(b"no Arrow")
    assert "data-00001-of-00002.arrow as Arrow: " in error(folder)
    (folder / "data-00001-of-00002.arrow").unlink()
    assert error(folder).endswith("lacks data-00001-of-00002.arrow, which its state.json names")
    (folder / "state.json").write_text("{}")
    assert error(folder).endswith("state.json names no data files")


def test_splits_without_one_to_train_on(tmp_path: Path) -> None:
    splits = write_dataset_of_splits(tmp_path, TEXTS)
    (splits / "dataset_dict.json").write_text('{"splits": ["test", "validation"]}')
    message = error(splits)
    assert re.search(r"unknown split of .*/splits 'train'; give the folder of one: ", message)
    assert message.endswith(f"{splits / 'test'}, {splits / 'validation'}")


def test_a_corpus_smaller_than_a_batch_names_both_numbers_and_what_fits(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "x" * 200)
    message = error(path)
    assert message == (
        "the data holds 200 tokens and a batch 512 (8 sequences of 64);"
        " --batch 3seq or --seq 25 fits"
    )
    opened(path, batch_sequences=3).close()
    opened(path, sequence_length=25).close()
    for too_much in ({"batch_sequences": 4}, {"sequence_length": 26}):
        with pytest.raises(BadInput, match="the data holds 200 tokens"):
            opened(path, **too_much)
    assert error(file(tmp_path, "b.txt", "xxxx")).endswith("--batch 1seq --seq 4 fits")


def test_data_without_text(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", line({"text": ""}) * 5)
    assert error(path) == "the data holds no text: all documents are empty"
    large = file(tmp_path, "b.jsonl", line({"text": "", "more": "x" * 20_000}) * 5)
    assert error(large) == "the data holds no text: all documents are empty"
    assert error(large, packing=False, batch_sequences=5) == error(path)


def test_rows_that_do_not_fit(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, DOCUMENTS)
    message = "a batch of 8 sequences does not divide over 3 processes; --batch 6seq does"
    assert error(path, process=1, processes=3) == message
    few = write_text(tmp_path / "few", TEXTS)
    assert error(few, packing=False) == (
        "5 documents are fewer than the 8 sequences of a batch, and without packing each is one;"
        " --batch 5seq fits"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sequence_length": 0}, "--seq 0 holds no token; it must be 1 or more"),
        ({"batch_sequences": 0}, "a batch of 0 sequences is empty; it must be 1 or more"),
        (
            {"batch_sequences": 10**12},
            "a batch of 1,000,000,000,000 sequences is too large; at most 1,048,576 are read",
        ),
        (
            {"sequence_length": 10**12, "batch_sequences": 2},
            "a batch of 2 sequences of 1,000,000,000,000 tokens is too large; at most 268,435,456"
            " tokens are read at once",
        ),
        ({"seed": -1}, "--seed -1 is not between 0 and 4294967295"),
        ({"epochs": 0}, "--epochs 0 trains on nothing; it must be 1 or more"),
    ],
)
def test_numbers_out_of_range(settings: dict[str, object], expected: str, tmp_path: Path) -> None:
    assert error(tmp_path, **settings) == expected


def test_ready_ids_beyond_the_vocabulary(tmp_path: Path) -> None:
    fine = line({"text": [1] * 600})
    path = file(tmp_path, "a.jsonl", fine + "\n" + line({"text": [1, 300]}))
    expected = "a.jsonl: line 3 holds the token id 300 and the model's vocab_size is 300"
    assert error(path).endswith(f"/{expected}")
    path = file(tmp_path, "a.jsonl", fine + "\n" + line({"text": [-1, 3]}))
    assert error(path).endswith(expected.replace("id 300", "id -1"))
    pq.write_table(pa.table({"text": [[1] * 600, [1, 300]]}), tmp_path / "a.parquet")
    before = file(tmp_path, "0.jsonl", fine)
    assert re.search(
        r"/a\.parquet: row 1 holds the token id 300 and",
        error(tmp_path, paths=(before, tmp_path / "a.parquet")),
    )


def test_a_state_of_another_batch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, DOCUMENTS)
    with opened(path, batch_sequences=4) as four, opened(path) as eight:
        with pytest.raises(BadInput, match=r"of 4 sequences and this batch has 8; resume with"):
            eight.restore(four.state())
        with pytest.raises(BadInput, match=r"shape \[4, 2\] is not \[sequences, 3\]"):
            four.restore(four.state()[:, :2])
