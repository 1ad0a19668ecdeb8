"""Ids, the end of a document, and vocabularies that do not fit."""

import json
import os
import re
from pathlib import Path

import pytest
import tokenizers

from muster.errors import BadInput
from muster.training.data.tokenizer import open_tokenizer
from tests.training.data.corpora import TEXTS, write_tokenizer


def test_bytes_are_the_ids() -> None:
    tokenizer = open_tokenizer("bytes", vocab_size=257, eos_token_id=None)
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert bytes(ids.tolist()).decode() == text


@pytest.mark.parametrize(
    ("vocab_size", "eos_token_id", "end"),
    [(256, None, 0), (257, None, 256), (300, 280, 280), (300, 2, 256), (300, 300, 256)],
)
def test_the_end_of_bytes_is_no_byte_where_there_is_room(
    vocab_size: int, eos_token_id: int | None, end: int
) -> None:
    tokenizer = open_tokenizer("bytes", vocab_size=vocab_size, eos_token_id=eos_token_id)
    assert tokenizer.end == end


def test_a_file_and_its_folder_are_the_same_tokenizer(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    of_file, of_folder = (
        open_tokenizer(str(where), vocab_size=300, eos_token_id=None) for where in (path, tmp_path)
    )
    reference = tokenizers.Tokenizer.from_file(str(path))
    for text, ids, same in zip(TEXTS, of_file.encode(TEXTS), of_folder.encode(TEXTS), strict=True):
        assert ids.tolist() == same.tolist() == reference.encode(text).ids
        assert reference.decode(ids.tolist()) == text
    assert len(of_file.encode(["the document number"])[0]) < len("the document number")


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    limited = tokenizers.Tokenizer.from_file(str(path))
    limited.enable_truncation(2)
    limited.enable_padding(length=2)
    limited.save(str(path))
    ids = open_tokenizer(str(path), vocab_size=300, eos_token_id=None).encode(["a", "a b c d e f"])
    assert [len(each) for each in ids] == [1, 11]


@pytest.mark.parametrize(
    ("beside", "eos_token_id", "end"),
    [
        ({"eos_token": "a"}, 7, "a"),
        ({"eos_token": {"content": "a", "lstrip": False}}, 7, "a"),
        ({"eos_token": "not in the vocabulary"}, 7, 7),
        ({}, 7, 7),
        ({}, None, "<|endoftext|>"),
        ({}, 300, "<|endoftext|>"),
    ],
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_where_the_end_of_a_document_is_found(
    file: str, beside: dict[str, object], eos_token_id: int | None, end: int | str, tmp_path: Path
) -> None:
    path = write_tokenizer(tmp_path)
    (tmp_path / file).write_text(json.dumps(beside))
    expected = (
        tokenizers.Tokenizer.from_file(str(path)).token_to_id(end) if type(end) is str else end
    )
    tokenizer = open_tokenizer(str(tmp_path), vocab_size=300, eos_token_id=eos_token_id)
    assert tokenizer.end == expected


def test_ids_beyond_the_vocabulary_are_refused_with_both_numbers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(BadInput, match=r"ids up to 299 and the model's vocab_size is 299"):
        open_tokenizer(str(tmp_path), vocab_size=299, eos_token_id=None)
    with pytest.raises(BadInput, match="bytes has ids up to 255 and the model's vocab_size is 255"):
        open_tokenizer("bytes", vocab_size=255, eos_token_id=None)


def test_tokenizers_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no tokenizer gpt7; give bytes, or"):
        open_tokenizer("gpt7", vocab_size=300, eos_token_id=None)
    folder = re.escape(str(tmp_path))
    with pytest.raises(BadInput, match=rf"^{folder} is a folder without a tokenizer\.json$"):
        open_tokenizer(str(tmp_path), vocab_size=300, eos_token_id=None)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(BadInput, match=r"tokenizer\.model must be converted"):
        open_tokenizer(str(tmp_path), vocab_size=300, eos_token_id=None)
    for content in ("", "{}", "[", '{"version": "1.0"}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(BadInput, match=r"is not a valid tokenizer\.json: .+") as caught:
            open_tokenizer(str(tmp_path), vocab_size=300, eos_token_id=None)
        assert "\n" not in str(caught.value)


def test_an_unknown_token_outside_of_the_vocabulary_is_noticed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    words = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
    tokenizers.Tokenizer(words).save(str(path))
    path.write_text(path.read_text().replace('"unk_token": "a"', '"unk_token": "absent"'))
    with pytest.raises(BadInput, match=r"tokenizer\.json cannot encode text: .*"):
        open_tokenizer(str(path), vocab_size=300, eos_token_id=None)


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match=r"pipe is not a regular file; give a tokenizer\.json"):
        open_tokenizer(str(tmp_path / "pipe"), vocab_size=300, eos_token_id=None)
