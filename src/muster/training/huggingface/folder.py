"""A folder that `save_pretrained` writes: which tensor lies in which file, and reading part of one.

A file is opened anew for every read: safetensors maps files into memory, and what was touched of
a map counts as the process's memory until it is closed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from muster.errors import BadInput, shorten
from muster.models.hf_config import printable
from muster.sharding.hf_names import Region
from muster.training.huggingface.dtypes import Array

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# What belongs to the tokenizer and to generating text; exported beside the weights as it was.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        shape: as stored.
        code: its number format, in the letters of safetensors, e.g. BF16.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    code: str

    def read(self, region: Region) -> Array:
        """Read a box of it, in its own format.

        Raises:
            BadInput: the file is gone, or is not what it was.
        """
        with _opened(self.file) as file:
            part: Array = file.get_slice(self.name)[region]
            return part


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder, by name, from its files' headers.

    Raises:
        BadInput: no such folder, no safetensors in it, a file that its index names is missing or
            damaged, or lacks a tensor that the index places there.
    """
    where = printable(folder)
    if not folder.is_dir():
        raise BadInput(f"{where} is no folder; give the folder that holds {SINGLE_FILE}")
    if (folder / SINGLE_FILE).is_file():
        return {tensor.name: tensor for tensor in _listed(folder / SINGLE_FILE)}
    if not (folder / INDEX_FILE).is_file():
        raise BadInput(_nothing_to_read(folder))
    placed = _weight_map(folder / INDEX_FILE)
    missing = sorted({file for file in placed.values() if not (folder / file).is_file()})
    if missing:
        raise BadInput(
            f"{printable(folder / INDEX_FILE)} names {_some(missing)}, not in the folder"
        )
    found = {
        tensor.name: tensor
        for file in sorted(set(placed.values()))
        for tensor in _listed(folder / file)
    }
    for name, file in placed.items():
        if name not in found:
            raise BadInput(f"{printable(folder / file)} lacks {name}, which the index places there")
    return found


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that an exported model needs beside its weights and config."""
    return tuple(folder / name for name in TOKENIZER_FILES if (folder / name).is_file())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        raise BadInput(
            f"{printable(path)} is damaged or no safetensors file: {_one_line(error)}"
        ) from None
    except OSError as error:
        raise BadInput(f"cannot read {printable(path)}: {_one_line(error)}") from None


def _listed(path: Path) -> list[StoredTensor]:
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return [
            StoredTensor(name=name, file=path, shape=tuple(it.get_shape()), code=it.get_dtype())
            for name, it in slices.items()
        ]


def _weight_map(path: Path) -> Mapping[str, str]:
    try:
        index = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot read {printable(path)}: {_one_line(error)}") from None
    placed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(placed, dict) or not placed:
        raise BadInput(f"{printable(path)} has no weight_map, which says where each tensor lies")
    for file in placed.values():
        if not isinstance(file, str) or not file or file != Path(file).name:
            raise BadInput(f"{printable(path)} names {shorten(file)}; it must be a file beside it")
    return placed


def _nothing_to_read(folder: Path) -> str:
    where = printable(folder)
    names = sorted(entry.name for entry in folder.iterdir())
    if shards := [name for name in names if name.endswith(".safetensors")]:
        return f"{where} holds {_some(shards)}, but neither {SINGLE_FILE} nor {INDEX_FILE}"
    if pickled := [name for name in names if name.endswith((".bin", ".pt", ".pth"))]:
        return (
            f"{where} holds {_some(pickled)} and no safetensors, the only files that are read; "
            "transformers' save_pretrained writes them"
        )
    return f"{where} has no {SINGLE_FILE} and no {INDEX_FILE}"


def _some(names: list[str]) -> str:
    """The first few of many names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
