"""Documents to rows of exactly T tokens.

A document of n tokens is held as a *chain* [n + 1]: its ids, and behind them the id that follows
the last one, or NOTHING. Any slice `chain[a : b + 1]` is again a chain, of the tokens a to b - 1
with their true next tokens, so a document can be cut at any place and no target is lost:

    chain    7  4  9  2  end        tokens   7  4 | 9  2
                                    targets  4  9 | 2  end

The end-of-document token is a target and never an input: nothing of this document follows it.
"""

import numpy as np

from muster.training.batch import Batch
from muster.training.data.documents import Ids

NOTHING = -1


def chain_of(ids: Ids, *, end: int | None) -> Ids:
    """The chain of a document with `ids` [n], which `end` follows.

    Ids that end with `end` already get no second one.

    >>> chain_of(np.array([7, 4], np.int32), end=9).tolist()
    [7, 4, 9]
    >>> chain_of(np.array([7, 9], np.int32), end=9).tolist()
    [7, 9]
    >>> chain_of(np.array([7, 4], np.int32), end=None).tolist()
    [7, 4, -1]
    """
    if end is not None and len(ids) > 1 and ids[-1] == end:
        return ids
    chain = np.empty(len(ids) + 1, np.int32)
    chain[:-1] = ids
    chain[-1] = NOTHING if end is None or not len(ids) else end
    return chain


def part_of(chain: Ids, part: int, parts: int) -> Ids:
    """One of `parts` parts of a chain, as equal as they can be; together they are all its tokens.

    >>> [part_of(np.array([5, 6, 7, 8, 9], np.int32), part, 3).tolist() for part in range(3)]
    [[5, 6], [6, 7], [7, 8, 9]]
    """
    length = len(chain) - 1
    start, stop = part * length // parts, (part + 1) * length // parts
    return chain[start : stop + 1]


class Rows:
    """Rows [R, T] that are being filled, each from its left end."""

    def __init__(self, rows: int, sequence_length: int) -> None:
        """Make `rows` empty rows of `sequence_length` tokens."""
        shape = (rows, sequence_length)
        self._tokens_RT = np.zeros(shape, np.int32)
        self._next_RT = np.full(shape, NOTHING, np.int32)
        self._positions_RT = np.zeros(shape, np.int32)
        self._segments_RT = np.zeros(shape, np.int32)
        self._used = [0] * rows
        self._segments = [0] * rows
        self._count_T = np.arange(sequence_length, dtype=np.int32)

    def room(self, row: int) -> int:
        """Tokens that still fit into a row."""
        return len(self._count_T) - self._used[row]

    @property
    def empty(self) -> bool:
        """Whether no row has a token."""
        return not any(self._used)

    def add(self, row: int, chain: Ids, *, offset: int = 0) -> int:
        """Put a chain's tokens from `offset` on into a row, as a segment of its own.

        Returns:
            The number of tokens that fitted.
        """
        count = min(self.room(row), len(chain) - 1 - offset)
        start = self._used[row]
        stop = start + count
        self._segments[row] += 1
        self._tokens_RT[row, start:stop] = chain[offset : offset + count]
        self._next_RT[row, start:stop] = chain[offset + 1 : offset + count + 1]
        self._positions_RT[row, start:stop] = self._count_T[:count]
        self._segments_RT[row, start:stop] = self._segments[row]
        self._used[row] = stop
        return count

    def batch(self) -> Batch:
        """The rows as they are; what was not filled is padding."""
        return Batch(
            tokens=self._tokens_RT,
            targets=np.maximum(self._next_RT, 0),
            positions=self._positions_RT,
            segments=self._segments_RT,
            weights=(self._next_RT != NOTHING).astype(np.float32),
        )
