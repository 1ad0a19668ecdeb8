"""Every format gives the same documents; what folders hold, and what a corpus is called."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from muster.training.data import DataConfig
from muster.training.data.documents import Document
from muster.training.data.parquet import text_bytes
from muster.training.data.sources import Corpus, open_corpus
from tests.training.data.corpora import TEXTS, WRITERS, jsonl, write_parquet, write_text


def corpus(*paths: Path, text_key: str = "text", rows: int = 1) -> Corpus:
    config = DataConfig(paths=paths, sequence_length=8, batch_sequences=rows, text_key=text_key)
    return open_corpus(config, vocab_size=300)


def documents(opened: Corpus) -> list[Document]:
    return [opened.source[index] for index in range(len(opened.source))]


def texts(opened: Corpus) -> list[object]:
    return [document.content for document in documents(opened)]


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_documents(kind: str, tmp_path: Path) -> None:
    opened = corpus(WRITERS[kind](tmp_path, TEXTS))
    assert texts(opened) == TEXTS
    assert all(document.ends for document in documents(opened))
    assert opened.description.documents == len(TEXTS)
    assert opened.description.bytes >= sum(len(text.encode()) for text in TEXTS)


@pytest.mark.parametrize("kind", WRITERS)
def test_documents_are_found_in_any_order(kind: str, tmp_path: Path) -> None:
    source = corpus(WRITERS[kind](tmp_path, TEXTS)).source
    for index in (4, 0, 3, 3, 1, 2, 0):
        assert source[index].content == TEXTS[index]


def test_formats_mix_in_one_folder_and_over_several_paths(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for kind in ("parquet", "jsonl", "saved", "text"):
        WRITERS[kind](folder, [f"{kind} {number}" for number in range(4)])
    more = write_text(tmp_path / "more", ["of another path"])
    opened = corpus(folder, more)
    kinds = ("jsonl", "parquet", "saved", "text")  # by the names data.jsonl, data.parquet, ...
    expected = [f"{kind} {number}" for kind in kinds for number in range(4)]
    assert texts(opened) == [*expected, "of another path"]
    assert opened.description.files == {
        "JSON lines": 1,
        "Parquet": 1,
        "saved dataset": 1,
        "text": 5,
    }


def test_a_folder_is_read_recursively_without_hidden_and_binary_files(tmp_path: Path) -> None:
    folder = write_text(tmp_path / "docs", ["first"])
    (folder / "sub").mkdir()
    (folder / "sub" / "code.py").write_text("print()")
    (folder / "sub" / "Makefile").write_text("all:")
    (folder / "sub" / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "sub" / "latin.dat").write_bytes(b"\xe9t\xe9")
    (folder / "sub" / "nothing.txt").touch()
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / "sub" / ".hidden").write_text("hidden")
    (folder / "sub" / "up").symlink_to(folder)
    opened = corpus(folder)
    assert texts(opened) == ["first", "all:", "print()"]
    assert opened.description.skipped == {
        "binary": 2,
        "empty": 1,
        "hidden": 2,
        "linked folders": 1,
    }


def test_a_text_key_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(jsonl(TEXTS, key="body"))
    assert texts(corpus(path, text_key="body")) == TEXTS


def test_empty_lines_of_json_lines_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n\n \n{"text": "b"}\n{"text": null}\n\n')
    assert texts(corpus(path)) == ["a", "b", ""]


def test_lines_longer_than_a_chunk_of_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.training.data.json_lines.CHUNK_BYTES", 7)
    path = tmp_path / "data.jsonl"
    path.write_bytes(jsonl(TEXTS))
    assert texts(corpus(path)) == TEXTS


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_token_ids_may_stand_in_the_place_of_text(kind: str, tmp_path: Path) -> None:
    lists = [[1, 2, 3], [], [256], [7, 7]]
    if kind == "jsonl":
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(json.dumps({"text": ids}) for ids in lists))
    else:
        path = WRITERS[kind](tmp_path, lists)  # type: ignore[arg-type]
    read = texts(corpus(path))
    assert all(isinstance(ids, np.ndarray) and ids.dtype == np.int32 for ids in read)
    assert [np.asarray(ids).tolist() for ids in read] == lists


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    ],
    ids=["large", "dictionary", "chunked"],
)
def test_parquet_columns_of_text_of_any_kind(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    assert texts(corpus(tmp_path / "x.parquet")) == TEXTS


def test_parquet_rows_without_a_value_are_empty_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "b"]}), tmp_path / "text.parquet")
    assert texts(corpus(tmp_path / "text.parquet")) == ["a", "", "b"]
    pq.write_table(pa.table({"text": [[1], None, [2, 3]]}), tmp_path / "ids.parquet")
    ids = [np.asarray(content).tolist() for content in texts(corpus(tmp_path / "ids.parquet"))]
    assert ids == [[1], [], [2, 3]]


def test_the_bytes_of_a_slice_are_those_of_its_rows_alone() -> None:
    bounds, content = text_bytes(pa.array(TEXTS, pa.large_string())[1:4])
    encoded = [text.encode() for text in TEXTS[1:4]]
    assert bytes(content) == b"".join(encoded)
    assert bounds.tolist() == [0, *np.cumsum([len(text) for text in encoded])]


def test_a_parquet_row_group_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(write_parquet(tmp_path, TEXTS)).source
    decoded: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, number: int, **rest: object) -> pa.Table:
        decoded.append(number)
        return original(file, number, **rest)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for index in (0, 1, 0, 4, 1):
        assert source[index].content == TEXTS[index]
    assert decoded == [0, 2]


def test_a_moved_corpus_has_the_same_fingerprint_and_a_changed_one_another(tmp_path: Path) -> None:
    before = corpus(write_text(tmp_path / "before", TEXTS)).description.fingerprint
    moved = corpus(Path(shutil.copytree(tmp_path / "before", tmp_path / "moved")))
    assert moved.description.fingerprint == before
    (tmp_path / "moved" / "0000.txt").write_text("Another line.")
    assert corpus(tmp_path / "moved").description.fingerprint != before
    (tmp_path / "before" / "0000.txt").rename(tmp_path / "before" / "0000.md")
    assert corpus(tmp_path / "before").description.fingerprint != before
