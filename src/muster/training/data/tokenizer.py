"""Text to token ids: bytes, or any `tokenizer.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers

from muster.errors import BadInput
from muster.models.hf_config import printable, read_config
from muster.training.data.documents import Ids, reason

BYTES = "bytes"
BYTE_VALUES = 256
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Letters and characters that few vocabularies hold, so that the unknown token is asked for.
TRIED = ("Text of 2 lines.\n\tÄ 字 \U0001f642", "\x01\ue000\U0010fffd")
USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Tokenizer(Protocol):
    """Text to ids."""

    @property
    def end(self) -> int | None:
        """Id of the end-of-document token, or None if there is none."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        ...


class ByteTokenizer:
    """Ids are the values of the UTF-8 bytes."""

    def __init__(self, *, vocab_size: int, eos_token_id: int | None) -> None:
        """Choose the end of a document: the model's own where no byte has it, else 256, else 0.

        Raises:
            BadInput: the vocabulary has no room for all byte values.
        """
        if vocab_size < BYTE_VALUES:
            raise BadInput(
                f"the tokenizer bytes has ids up to {BYTE_VALUES - 1} and the model's vocab_size"
                f" is {vocab_size}; it takes {BYTE_VALUES}, or {BYTE_VALUES + 1} with an end"
            )
        if eos_token_id is not None and BYTE_VALUES <= eos_token_id < vocab_size:
            self.end = eos_token_id
        else:
            self.end = BYTE_VALUES if vocab_size > BYTE_VALUES else 0

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The byte values of each text."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]


class FileTokenizer:
    """The tokenizer that a `tokenizer.json` describes, with the special tokens of its template."""

    def __init__(self, path: Path, *, vocab_size: int, eos_token_id: int | None) -> None:
        """Load the file at `path`, or the one in the folder `path`.

        Raises:
            BadInput: there is none, it is not valid, or it has ids beyond `vocab_size`.
        """
        file = tokenizer_file(path)
        where = printable(file)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower class
            raise BadInput(f"{where} is not a valid tokenizer.json: {reason(error)}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._where = where
        self.encode(TRIED)  # an unk_token that is not in the vocabulary is only noticed now
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise BadInput(f"{where} has an empty vocabulary")
        largest = max(vocabulary.values())
        if largest >= vocab_size:
            raise BadInput(
                f"{where} has ids up to {largest} and the model's vocab_size is {vocab_size};"
                " give the tokenizer of this model, or a model with a larger vocabulary"
            )
        self.end = end_of_document(
            vocabulary, settings(file.parent), eos_token_id=eos_token_id, vocab_size=vocab_size
        )

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; the texts are spread over the library's threads.

        Raises:
            BadInput: the tokenizer has no id for something in them.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts))
        except Exception as error:  # the library raises no narrower class
            raise BadInput(f"{self._where} cannot encode text: {reason(error)}") from None
        return [np.array(encoding.ids, np.int32) for encoding in encodings]


class NoTokenizer:
    """In the place of a tokenizer where every document is token ids already."""

    def __init__(self, *, end: int) -> None:
        """Let documents end with the id `end`."""
        self.end = end

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Nothing: there are no texts."""
        assert not texts
        return []


def open_tokenizer(name: str, *, vocab_size: int, eos_token_id: int | None) -> Tokenizer:
    """The tokenizer that a user names.

    Args:
        name: "bytes", or the path of a `tokenizer.json` or of its folder.
        vocab_size: ids must lie below it.
        eos_token_id: the end-of-document id of the model's config, if it has one.

    Raises:
        BadInput: it cannot be loaded or has ids beyond `vocab_size`.
    """
    if name == BYTES:
        return ByteTokenizer(vocab_size=vocab_size, eos_token_id=eos_token_id)
    return FileTokenizer(Path(name), vocab_size=vocab_size, eos_token_id=eos_token_id)


def tokenizer_file(path: Path) -> Path:
    """The `tokenizer.json` that `path` is or holds."""
    try:
        if not path.is_dir():
            if path.is_file():
                return path
            if path.exists():
                raise BadInput(f"{printable(path)} is not a regular file; give a tokenizer.json")
            raise BadInput(
                f"no tokenizer {printable(path)}; give bytes, or a tokenizer.json or its folder"
            )
        file = path / TOKENIZER_FILE
        if file.is_file():
            return file
        other = sorted(entry.name for entry in path.glob("*.model"))
    except OSError as error:
        raise BadInput(f"cannot read {printable(path)}: {reason(error)}") from None
    hint = f"; {other[0]} must be converted to one first" if other else ""
    raise BadInput(f"{printable(path)} is a folder without a {TOKENIZER_FILE}{hint}")


def settings(folder: Path) -> list[Mapping[str, object]]:
    """The objects beside a `tokenizer.json` that say which token ends a document."""
    files = (folder / name for name in SETTINGS_FILES)
    return [read_config(file) for file in files if file.is_file()]


def end_of_document(
    vocabulary: Mapping[str, int],
    objects: Sequence[Mapping[str, object]],
    *,
    eos_token_id: int | None,
    vocab_size: int,
) -> int | None:
    """The id of the end-of-document token.

    The first that is known of: `eos_token` of the objects beside the tokenizer, the id in the
    model's config, a token that usually has this role.

    >>> end_of_document({"a": 0, "</s>": 1}, [], eos_token_id=None, vocab_size=2)
    1
    >>> end_of_document({"a": 0}, [{"eos_token": {"content": "a"}}], eos_token_id=7, vocab_size=8)
    0
    """
    for settings_object in objects:
        token = settings_object.get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content in vocabulary:
            return vocabulary[content]
    if eos_token_id is not None and 0 <= eos_token_id < vocab_size:
        return eos_token_id
    return next((vocabulary[token] for token in USUAL_ENDS if token in vocabulary), None)
