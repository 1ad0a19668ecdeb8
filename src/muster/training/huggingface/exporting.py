"""From arrays to a folder that `from_pretrained` loads, a tensor at a time."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.models.hf_config import printable
from muster.sharding.hf_names import HfTensor, hf_tensors
from muster.training.huggingface.dtypes import CODES, Array, assign, known_dtype
from muster.training.huggingface.folder import TOKENIZER_FILES
from muster.training.huggingface.importing import VOCAB_DIM
from muster.training.huggingface.matching import BLOCK_BYTES
from muster.training.huggingface.model_config import write_configs
from muster.training.huggingface.shards import Entry, Place, shards_of, start_files

# Anything with a shape whose parts numpy can read: a jax or numpy array, or a stored one.
type Weights = Mapping[str, Any] | Callable[[str], Any]

MAX_SHARD_BYTES = 5e9  # as large as transformers 4 made them; a hub takes files of up to 50 GB
GB = 1e9


def export_folder(
    weights: Weights,
    architecture: Architecture,
    folder: Path,
    *,
    dtype: DTypeLike,
    max_shard_bytes: float = MAX_SHARD_BYTES,
    tokenizer_files: Sequence[Path] = (),
) -> None:
    """Write a Hugging Face checkpoint; the folder appears when it is complete, or not at all.

    Args:
        weights: the array of each weight by its name, [L, ...] for those of the layers, or what
            gives it. Each is asked for once, and cut by layer (and expert) before it is read.
        architecture: the model; its config is written as it was read.
        folder: where to; it must not exist, or be empty.
        dtype: float32, bfloat16 or float16; numbers of another format are rounded.
        max_shard_bytes: above this many bytes the weights are cut into several files.
        tokenizer_files: copied beside the weights.

    Raises:
        BadInput: the folder has something in it or cannot be written, the disk is too small, or
            a weight is absent or of another shape than the model's.
    """
    stored_as = known_dtype(dtype)
    tensors = hf_tensors(architecture)
    if not callable(weights):
        _check_names(weights, tensors, architecture)
    give = weights if callable(weights) else weights.__getitem__
    entries = [
        Entry(
            name=tensor.name(place),
            shape=tensor.shape,
            code=CODES[stored_as.name],
            itemsize=stored_as.itemsize,
        )
        for _, tensor, place in sorted(_in_file_order(tensors), key=lambda item: item[0])
    ]
    _check_folder(folder)
    _check_files(tokenizer_files)
    with _becoming(folder) as partial_folder:
        _check_space(partial_folder, sum(entry.nbytes for entry in entries))
        places = start_files(partial_folder, shards_of(entries, max_shard_bytes))
        for tensor in tensors:
            _write_weight(give(tensor.weight), tensor, places, stored_as)
        write_configs(partial_folder, architecture, stored_as.name)
        for file in tokenizer_files:
            shutil.copyfile(file, partial_folder / file.name)


def _in_file_order(
    tensors: Sequence[HfTensor],
) -> Iterator[tuple[tuple[int, ...], HfTensor, tuple[int, ...]]]:
    """Every tensor with its rank: embedding, the layers one by one, what comes after them."""
    for index, tensor in enumerate(tensors):
        for place in tensor.places():
            if tensor.layers is None:
                yield (-1 if tensor.weight == "embedding" else 2**31, index), tensor, place
            else:
                yield (tensor.layers[place[0]], index, *place[1:]), tensor, place


def _check_names(
    weights: Mapping[str, Any], tensors: Sequence[HfTensor], architecture: Architecture
) -> None:
    names = {tensor.weight for tensor in tensors}
    if missing := sorted(names - weights.keys()):
        raise BadInput(f"the weights of {architecture.name} lack {', '.join(missing)}")
    if more := sorted(weights.keys() - names):
        raise BadInput(f"{architecture.name} has no weights {', '.join(more)}")


def _write_weight(
    weight: Any, tensor: HfTensor, places: Mapping[str, Place], stored_as: np.dtype[Any]
) -> None:
    """Write all tensors of one weight."""
    _check_shape(weight, tensor)
    for place in tensor.places():
        part = _host_part(weight, place)
        real = part[tuple(slice(0, size) for size in tensor.ours)]  # without padded vocabulary
        _write(real, tensor, tensor.name(place), places, stored_as)


def _write(
    part: Array,
    tensor: HfTensor,
    name: str,
    places: Mapping[str, Place],
    stored_as: np.dtype[Any],
) -> None:
    """Write one tensor, a few of its rows at a time."""
    split = part.transpose(tensor.to_stored)
    row_bytes = max(1, prod(split.shape[1:])) * stored_as.itemsize
    step = max(1, BLOCK_BYTES // row_bytes)
    with places[name].file.open("r+b") as stream:
        stream.seek(places[name].offset)
        for start in range(0, len(split), step):
            rows = split[start : start + step]
            block = np.empty(rows.shape, stored_as)
            assign(block, rows, name=name)
            stream.write(block.reshape(-1).view(np.uint8).data)


def _host_part(weight: Any, place: tuple[int, ...]) -> Array:
    """What a weight holds of one layer, or of one expert of one layer, as a numpy array.

    Shards are put together here and not by XLA, which cuts along a sharded dim by adding zeros, so
    that a negative zero or a subnormal number does not stay what it is.
    """
    if not isinstance(weight, jax.Array):
        return np.asarray(weight[place] if place else weight)
    assert weight.is_fully_addressable, "one process exports, and holds all of the weights"
    outer = len(place)
    if len(weight.addressable_shards) == 1:
        return _cut(weight.addressable_data(0), place)
    part = np.empty(weight.shape[outer:], weight.dtype)
    for shard in weight.addressable_shards:
        begins = [cut.start or 0 for cut in shard.index[:outer]]
        local = tuple(at - begin for at, begin in zip(place, begins, strict=True))
        inside = all(
            0 <= at < size for at, size in zip(local, shard.data.shape[:outer], strict=True)
        )
        if shard.replica_id == 0 and inside:
            part[shard.index[outer:]] = _cut(shard.data, local)
    return part


def _cut(shard: jax.Array, place: tuple[int, ...]) -> Array:
    """One place of what a device holds, without a copy of the rest."""
    if _in_host_memory(shard):
        return np.asarray(np.asarray(shard)[place])  # numpy sees a CPU device's memory itself
    return np.asarray(_taken(shard, place))


def _in_host_memory(shard: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in shard.devices())


@jax.jit
def _taken(weight: jax.Array, place: tuple[int, ...]) -> jax.Array:
    return weight[place]


def _check_shape(weight: Any, tensor: HfTensor) -> None:
    dim = VOCAB_DIM.get(tensor.weight)
    found, expected = tuple(weight.shape), tensor.stacked
    padded = dim is not None and len(found) == len(expected) and found[dim] > expected[dim]
    same = [
        size == wanted or (padded and index == dim)
        for index, (size, wanted) in enumerate(zip(found, expected, strict=False))
    ]
    if len(found) != len(expected) or not all(same):
        raise BadInput(f"{tensor.weight} is {list(found)}, not {list(expected)} as the model has")


def _check_folder(folder: Path) -> None:
    where = printable(folder)
    if folder.is_dir():
        if any(folder.iterdir()):
            raise BadInput(f"{where} is not empty; name a new folder")
    elif folder.exists() or folder.is_symlink():
        raise BadInput(f"{where} is there and no folder; name a new one")


def _check_files(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise BadInput(f"no file {printable(file)}")
        if file.name not in TOKENIZER_FILES:
            raise BadInput(
                f"{printable(file)} is no file of a tokenizer; those are "
                f"{', '.join(TOKENIZER_FILES)}"
            )


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BadInput(
            f"the weights need {needed / GB:.3g} GB and {printable(folder.parent)} has "
            f"{free / GB:.3g} GB free"
        )


@contextmanager
def _becoming(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place at the end, or is removed."""
    folder = folder.resolve()
    unfinished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        os.replace(unfinished, folder)  # noqa: PTH105 (replaces an empty folder at once)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"cannot write {printable(folder)}: {reason}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
