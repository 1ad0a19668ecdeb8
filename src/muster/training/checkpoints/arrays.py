"""Arrays of a checkpoint: trees as flat names, what may differ from what was saved, reading.

Letters: V rows of the vocabulary.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from muster.errors import BadInput
from muster.training.checkpoints.folder import Damaged

type Named = Mapping[str, jax.ShapeDtypeStruct]

# The dim of V in each weight that has one: zero rows pad it to a multiple of the tensor ways.
VOCAB_DIM = {"embedding": 0, "head": 1, "head.bias": 0}

MOST_DIFFERENCES_NAMED = 3
MOST_CHARACTERS_OF_A_REASON = 200

# Arrays are stored in chunks of at most this size, so that a process that restores a part of an
# array decodes little more than its part, whatever mesh it was saved from.
CHUNK_BYTES = 16 * 2**20
# Orbax splits dims at their divisors; one that has a larger prime factor than this would be cut
# into slivers (a prime V into single rows), so such an array is stored by shards.
LARGEST_FACTOR_TO_SPLIT = 2048
# Bytes in flight between file and device: each takes up to three in memory (compressed, decoded,
# in the shard's buffer), so that a sixteenth of what a process reads costs it less than a fifth
# more. Less than the least would leave a disk idle, more than the most would not make it faster.
IN_FLIGHT_SHARE = 1 / 16
LEAST_IN_FLIGHT_BYTES = 32 * 2**20
MOST_IN_FLIGHT_BYTES = 4 * 2**30


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An array in a checkpoint: its shape, dtype and the shape of its chunks."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]


def flatten(tree: Any) -> dict[str, Any]:
    """A pytree as a flat dict, each leaf under its path.

    Flat names keep the stored form free of Python classes, so that a library may rename its own.

    >>> flatten({"a": (1, {"layers.b": 2})})
    {'a/0': 1, 'a/1/layers.b': 2}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def bytes_of(*trees: Any) -> int:
    """Bytes of all arrays (or their abstract forms) in pytrees, all hosts together."""
    leaves = jax.tree.leaves(trees)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def largest_factor(number: int) -> int:
    """The largest prime factor.

    >>> largest_factor(128_256), largest_factor(50_257), largest_factor(32_003)
    (167, 1733, 32003)
    """
    factor, largest = 2, 1
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number //= factor
            largest = factor
    return max(largest, number)


def save_args(arrays: Mapping[str, jax.Array]) -> dict[str, Any]:
    """How each array is stored: in chunks where its dims divide well, else by shards."""
    import orbax.checkpoint as ocp  # noqa: PLC0415 -- a second of imports

    def divides(shape: tuple[int, ...]) -> bool:
        return all(largest_factor(size) <= LARGEST_FACTOR_TO_SPLIT for size in shape)

    return {
        name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES if divides(array.shape) else None)
        for name, array in arrays.items()
    }


def stored_arrays(item: Path) -> dict[str, Stored]:
    """Shape, dtype and chunks of every array of an item, from its metadata alone.

    Raises:
        Damaged: the metadata cannot be read.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415

    handler = ocp.PyTreeCheckpointHandler()
    try:
        metadata = handler.metadata(item).tree
        return {
            name: Stored(
                shape=tuple(entry.shape),
                dtype=np.dtype(entry.dtype),
                chunk=tuple(entry.storage.chunk_shape),
            )
            for name, entry in metadata.items()
        }
    except Exception as error:
        raise Damaged(f"the metadata of {item.name} cannot be read: {reason(error)}") from error
    finally:
        handler.close()


def check_same(
    stored: Mapping[str, Stored],
    wanted: Named,
    *,
    vocab_size: int | None,
    what: str,
    kind: str,
    part: bool,
) -> None:
    """Compare names, shapes and kinds of numbers of saved arrays with those asked for.

    Args:
        stored: what the checkpoint holds.
        wanted: what the model has.
        vocab_size: rows of V that are real, where both sides agree on it; V may then differ by
            rows of padding.
        what: the checkpoint, for the message.
        kind: what it may be another of, a model or an optimizer.
        part: whether the checkpoint may hold more than is asked for.

    Raises:
        BadInput: the first few that differ, with both shapes.
    """
    differences = [
        f"{name} is {_shown(stored[name])} there and {_shown(leaf)} here"
        for name, leaf in wanted.items()
        if name in stored and not _fits(stored[name], leaf, name, vocab_size)
    ]
    differences += [f"{name} is missing there" for name in wanted if name not in stored]
    if not part:
        differences += [f"{name} is only there" for name in stored if name not in wanted]
    if differences:
        rest = len(differences) - MOST_DIFFERENCES_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        raise BadInput(
            f"{what} is of another {kind}: {'; '.join(differences[:MOST_DIFFERENCES_NAMED])}{more}"
        )


def _shown(array: Stored | jax.ShapeDtypeStruct) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"


def _fits(stored: Stored, wanted: jax.ShapeDtypeStruct, name: str, vocab_size: int | None) -> bool:
    if jax.numpy.issubdtype(stored.dtype, np.floating) != jax.numpy.issubdtype(
        wanted.dtype, np.floating
    ):
        return False
    if stored.shape == wanted.shape:
        return True
    dim = VOCAB_DIM.get(name.rpartition("/")[2])
    if vocab_size is None or dim is None or len(stored.shape) != len(wanted.shape):
        return False
    differing = [
        i for i, (a, b) in enumerate(zip(stored.shape, wanted.shape, strict=True)) if a != b
    ]
    return differing == [dim] and min(stored.shape[dim], wanted.shape[dim]) >= vocab_size


def casts(stored: Mapping[str, Stored], wanted: Named, item: str) -> tuple[str, ...]:
    """What restoring changes the dtype of, one line for each pair of dtypes."""
    pairs: dict[tuple[str, str], int] = {}
    for name, leaf in wanted.items():
        pair = (stored[name].dtype.name, np.dtype(leaf.dtype).name)
        if pair[0] != pair[1]:
            pairs[pair] = pairs.get(pair, 0) + 1
    return tuple(
        f"{item}: {count} {'array' if count == 1 else 'arrays'} cast from {old} to {new}"
        for (old, new), count in pairs.items()
    )


def read_arrays(item: Path, stored: Mapping[str, Stored], wanted: Named) -> dict[str, jax.Array]:
    """Read arrays onto the shardings asked for; each process reads only its own shards.

    An array that is longer in the vocabulary than the saved one ends in zeros; one that is shorter
    loses rows of padding (`check_same` has made sure that they are).

    Raises:
        Damaged: an array cannot be read.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415

    if not wanted:
        return {}
    placed = {name: with_sharding(leaf) for name, leaf in wanted.items()}
    restore_args = {
        name: ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype, strict=False
        )
        for name, leaf in placed.items()
    }
    in_flight = in_flight_bytes(stored, placed)
    handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=in_flight / 10**9)
    try:
        arrays: dict[str, jax.Array] = handler.restore(
            item,
            args=ocp.args.PyTreeRestore(
                item=placed, restore_args=restore_args, partial_restore=len(wanted) < len(stored)
            ),
        )
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise  # the machine's fault, and no older checkpoint would fit better
    except Exception as error:
        raise Damaged(f"{item.name} cannot be read: {reason(error)}") from error
    finally:
        handler.close()
    return {name: arrays[name] for name in wanted}


def with_sharding(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """The leaf itself, or on this process's first device where it names no sharding."""
    if leaf.sharding is not None:
        return leaf
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def in_flight_bytes(stored: Mapping[str, Stored], wanted: Named) -> int:
    """How many bytes this process reads at once; more than the largest single read of it."""
    largest_read = max(shard_read_bytes(stored[name], leaf) for name, leaf in wanted.items())
    local = sum(local_bytes(leaf) for leaf in wanted.values())
    usual = min(max(LEAST_IN_FLIGHT_BYTES, int(local * IN_FLIGHT_SHARE)), MOST_IN_FLIGHT_BYTES)
    return max(usual, largest_read + 1)


def local_bytes(wanted: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array's shards on this process's devices."""
    assert wanted.sharding is not None
    shard = math.prod(wanted.sharding.shard_shape(wanted.shape))
    devices = len(wanted.sharding.addressable_devices)
    return shard * devices * np.dtype(wanted.dtype).itemsize


def shard_read_bytes(stored: Stored, wanted: jax.ShapeDtypeStruct) -> int:
    """Bytes of the whole chunks that the hungriest shard of this process touches."""
    assert wanted.sharding is not None
    itemsize = max(stored.dtype.itemsize, np.dtype(wanted.dtype).itemsize)
    most = 0
    for index in wanted.sharding.addressable_devices_indices_map(wanted.shape).values():
        elements = 1
        for part, size, chunk in zip(index or (), stored.shape, stored.chunk, strict=True):
            start, stop, _ = part.indices(size)
            elements *= max(1, -(-stop // chunk) - start // chunk) * chunk
        most = max(most, elements)
    return most * itemsize


def reason(error: BaseException) -> str:
    """What went wrong in a few words, out of the innermost cause.

    >>> reason(ValueError("X: Error writing a/0: No space left [os_error_code='28']"))
    'No space left'
    >>> reason(OSError(28, "No space left on device", "a/b"))
    'No space left on device'
    """
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if found := re.search(r"([^:\[\]]+) \[os_error_code=", text):
        return found[1].strip()
    return text[:MOST_CHARACTERS_OF_A_REASON]
