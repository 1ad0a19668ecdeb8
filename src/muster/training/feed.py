"""From a host's rows to arrays on the mesh, and where every row stands for a checkpoint.

A host may hold all rows, a block of them, or the same rows as another host (where sequences or
heads are split between hosts): the batch's sharding says which, and the stream is opened for those.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from muster.errors import BadInput
from muster.sharding.rules import BATCH_AXES
from muster.training.attention import balanced_order
from muster.training.batch import Batch
from muster.training.data import DataConfig, Stream, open_stream
from muster.training.partition import Partition

type State = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which rows of the global batch this process feeds: block `index` of `count` equal ones."""

    index: int
    count: int


def share_of_rows(sharding: NamedSharding, rows: int, process: int) -> Share:
    """The block of rows that a process's devices hold.

    Where they hold no even block, the process reads all rows and uses its own.
    """
    starts = sorted(
        {
            (index[0].start or 0, rows if index[0].stop is None else index[0].stop)
            for device, index in sharding.devices_indices_map((rows, 1)).items()
            if device.process_index == process  # type: ignore[attr-defined]
        }
    )
    if not starts:
        return Share(index=0, count=1)
    first, last = starts[0][0], starts[-1][1]
    held = sum(stop - start for start, stop in starts)
    if held != last - first or rows % held or first % held:
        return Share(index=0, count=1)
    return Share(index=first // held, count=rows // held)


class Feed:
    """The batches of a run as arrays on its mesh.

    Attributes:
        stream: this host's rows.
    """

    def __init__(
        self,
        config: DataConfig,
        vocab_size: int,
        eos: int | None,
        place: Partition,
        most_documents: int | None = None,
    ):
        """Open the data for the rows that this process's devices hold.

        Args:
            config: the data.
            vocab_size: V.
            eos: the model's end-of-document id.
            place: the mesh.
            most_documents: that a row may hold, where the attention kernel must know.
        """
        self._most_documents = most_documents
        self._place = place
        self._rows = config.batch_sequences
        # Rows are split as [B, 1]: T does not matter to who reads what.
        by_rows = place.named(BATCH_AXES, None)
        self._shares = [
            share_of_rows(by_rows, self._rows, process) for process in range(jax.process_count())
        ]
        mine = self._shares[jax.process_index()]
        self._first = mine.index * (self._rows // mine.count)
        ways = place.layout.sequence
        self._order = balanced_order(config.sequence_length, ways) if ways > 1 else None
        self.stream: Stream = open_stream(
            config,
            vocab_size,
            process_index=mine.index,
            process_count=mine.count,
            eos_token_id=eos,
        )

    def __next__(self) -> Batch:
        """The next global batch, [B, T], tokens in the order that balances causal attention."""
        batch = next(self.stream)
        if self._most_documents is not None:
            held = int(np.max(batch.segments)) + 1
            if held > self._most_documents:
                raise BadInput(
                    f"a row holds {held - 1} documents, more than this attention kernel takes "
                    f"({self._most_documents - 1}); --no-packing gives each a row of its own"
                )
        return jax.tree.map(self._place_leaf, batch)

    def _place_leaf(self, local: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> jax.Array:
        ordered = local if self._order is None else local[:, self._order]
        if jax.process_count() == 1:
            return jax.device_put(ordered, self._place.tokens)

        def piece(
            index: tuple[slice, ...] | None,
        ) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
            assert index is not None
            rows = slice(
                (index[0].start or 0) - self._first,
                (self._rows if index[0].stop is None else index[0].stop) - self._first,
            )
            return ordered[rows, index[1]]

        shape = (self._rows, local.shape[1])
        return jax.make_array_from_callback(shape, self._place.tokens, piece)

    def state(self) -> State:
        """Where every row of the global batch stands, [B, 3]; all processes call it together."""
        own = self.stream.state()
        if jax.process_count() == 1:
            return own
        everyone = multihost_utils.process_allgather(own)
        whole = np.zeros((self._rows, own.shape[1]), np.int64)
        for share, rows in zip(self._shares, everyone, strict=True):
            first = share.index * (self._rows // share.count)
            whole[first : first + len(rows)] = rows
        return whole

    def close(self) -> None:
        """Stop reading."""
        self.stream.close()
