"""From a folder of safetensors to arrays on devices, each device reading only its own part.

A stacked weight is allocated where it will live and filled a layer at a time: the file's numbers
go through one host array of a layer's size, in our layout and format, and one device array.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from numpy.typing import DTypeLike

from muster.models.architecture import Architecture
from muster.sharding.hf_names import HfTensor, Region
from muster.training.huggingface.dtypes import DTYPES, Array, assign, known_dtype
from muster.training.huggingface.folder import StoredTensor, stored_tensors
from muster.training.huggingface.matching import BLOCK_BYTES, matched_tensors
from muster.training.params import Params

VOCAB_DIM = {"embedding": 0, "head": 1}


def import_folder(
    folder: Path,
    architecture: Architecture,
    *,
    dtype: DTypeLike,
    shardings: Mapping[str, Sharding] | None = None,
    padded_vocab: int | None = None,
) -> Params:
    """Read a Hugging Face checkpoint as the weights of `architecture`.

    In a program of many processes, all of them call this; each reads what its devices hold.

    Args:
        folder: with model.safetensors, or model.safetensors.index.json and its files.
        architecture: the model, whose tensors the folder must hold to the last one.
        dtype: float32, bfloat16 or float16; what is stored otherwise is rounded.
        shardings: where each weight is to lie; without, all on the first device.
        padded_vocab: rows that embedding and head get; those beyond the vocabulary are zero.

    Returns:
        An array for each weight, [L, ...] for those of the layers.

    Raises:
        BadInput: the folder is not a checkpoint of this model; the message names the tensors.
    """
    wanted = known_dtype(dtype)
    padded_vocab = padded_vocab or architecture.vocab_size
    assert padded_vocab >= architecture.vocab_size, padded_vocab
    stored = stored_tensors(folder)
    params: Params = {}
    for tensor in matched_tensors(stored, architecture, folder):
        sharding = shardings[tensor.weight] if shardings else _first_device()
        source = _Source(
            tensor=tensor, stored=stored, dtype=wanted, sizes=_padded(tensor, padded_vocab)
        )
        params[tensor.weight] = _placed(source, sharding)
    return params


@dataclass(frozen=True, kw_only=True)
class _Source:
    """One weight as a folder holds it; `sizes` are of one layer or expert, vocabulary padded."""

    tensor: HfTensor
    stored: Mapping[str, StoredTensor]
    dtype: np.dtype[np.generic]
    sizes: tuple[int, ...]

    @property
    def per_layer(self) -> tuple[int, ...]:
        """The shape of what one layer holds: [E, ...] with experts."""
        experts = self.tensor.experts
        return self.sizes if experts is None else (experts, *self.sizes)

    def read(self, layer: int | None, region: Region) -> Array:
        """A box of what one layer holds, in our layout and format."""
        outer = () if layer is None else (layer,)
        if self.tensor.experts is None:
            return self._read_one(outer, region)
        experts = range(region[0].start, region[0].stop)
        part = np.empty([len(experts), *_lengths(region[1:])], self.dtype)
        for index, expert in enumerate(experts):
            part[index] = self._read_one((*outer, expert), region[1:])
        return part

    def _read_one(self, place: tuple[int, ...], region: Region) -> Array:
        tensor, stored = self.tensor, self.stored[self.tensor.name(place)]
        part = np.zeros(_lengths(region), self.dtype)  # zero where the vocabulary is padded
        inside = tuple(
            slice(min(cut.start, size), min(cut.stop, size))
            for cut, size in zip(region, tensor.ours, strict=True)
        )
        target = part[tuple(slice(0, length) for length in _lengths(inside))]
        dim = tensor.order[0][0]  # ours, that runs along the rows of the file
        inner = prod(tensor.ours[d] for d in tensor.order[0][1:])
        row_bytes = inner * prod(stored.shape[1:]) * DTYPES[stored.code].itemsize
        for rows in _steps(inside[dim], max(1, BLOCK_BYTES // row_bytes)):
            box = _with(inside, dim, rows)
            numbers = _in_our_layout(tensor, stored.read(tensor.stored_region(box)), box)
            here = _with(_all(target), dim, _shifted(rows, -inside[dim].start))
            assign(target[here], numbers, name=stored.name)
        return part


def _in_our_layout(tensor: HfTensor, numbers: Array, box: Region) -> Array:
    """The box that was asked for, from the region of the file that covers it; a view."""
    outermost = {dims[0] for dims in tensor.order}
    lengths = [
        cut.stop - cut.start if dim in outermost else size
        for dim, (cut, size) in enumerate(zip(box, tensor.ours, strict=True))
    ]
    split = [lengths[dim] for dim in tensor.to_stored]
    return numbers.reshape(split).transpose(tensor.to_ours)[tensor.inner_region(box)]


def _placed(source: _Source, sharding: Sharding) -> jax.Array:
    """The whole weight on its devices."""
    layers = source.tensor.layers
    if layers is None:
        return _device_array(source, None, sharding)
    shape, inner = (len(layers), *source.per_layer), _without_layers(sharding)
    put = jax.jit(_put, donate_argnums=0, out_shardings=sharding)
    empty = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=sharding)
    weight: jax.Array = empty(shape, source.dtype)
    for layer in range(len(layers)):
        weight = put(weight, _device_array(source, layer, inner), layer)
        weight.block_until_ready()  # else layers that were read wait for their turn in memory
    return weight


def _put(weight: jax.Array, layer: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(weight, layer, index, axis=0)


def _device_array(source: _Source, layer: int | None, sharding: Sharding) -> jax.Array:
    shape = source.per_layer
    read: dict[tuple[tuple[int, int], ...], Array] = {}  # devices that hold the same share one

    def part(index: Region | None) -> Array:
        assert index is not None, "shapes of weights are known"
        cuts = tuple(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))
        if cuts not in read:
            read[cuts] = source.read(layer, tuple(slice(*cut) for cut in cuts))
        return read[cuts]

    return jax.make_array_from_callback(shape, sharding, part)


def _without_layers(sharding: Sharding) -> Sharding:
    """Where one layer of a stacked weight lies."""
    if isinstance(sharding, NamedSharding):
        spec = PartitionSpec(*sharding.spec[1:])
        return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    assert isinstance(sharding, SingleDeviceSharding), sharding
    return sharding


def _first_device() -> Sharding:
    return SingleDeviceSharding(jax.local_devices()[0])


def _padded(tensor: HfTensor, vocab: int) -> tuple[int, ...]:
    dim = VOCAB_DIM.get(tensor.weight)
    return tuple(vocab if index == dim else size for index, size in enumerate(tensor.ours))


def _lengths(region: Region) -> list[int]:
    return [cut.stop - cut.start for cut in region]


def _all(array: Array) -> Region:
    return tuple(slice(0, size) for size in array.shape)


def _with(region: Region, dim: int, cut: slice) -> Region:
    return (*region[:dim], cut, *region[dim + 1 :])


def _shifted(cut: slice, by: int) -> slice:
    return slice(cut.start + by, cut.stop + by)


def _steps(cut: slice, step: int) -> Iterator[slice]:
    for start in range(cut.start, cut.stop, step):
        yield slice(start, min(start + step, cut.stop))
