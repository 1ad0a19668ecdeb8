"""Which document each row of the batch visits when.

Row r of B has a stream of its own. In epoch e it visits the units at the places
p = c, c + B, c + 2B, ... with c = (r + e) mod B of that epoch's order: place p holds unit
shuffle_e(p), or p itself without a shuffle. So the rows share every epoch among themselves without
talking to each other, and nothing depends on how many hosts make the rows. (Turning c with e lets
every row see every document in the end without a shuffle too.)

A unit is a document, or, where there are fewer documents than rows, one of its `parts` equal parts.
The shuffle is computed place by place, in constant memory.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from grain.experimental import index_shuffle

CIPHER_ROUNDS = 4  # of the block cipher that permutes the places; what grain's own shuffle takes
MOST_UNITS = 2**32  # its places are 32 bits
EPOCHS_AT_A_TIME = 64  # rows are in different ones where documents differ much in length


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A document, or one of its parts."""

    document: int
    part: int
    parts: int


@dataclass(frozen=True, kw_only=True)
class VisitOrder:
    """The order in which B rows visit a corpus.

    Attributes:
        documents: in the corpus.
        rows: B.
        seed: of the shuffle; None for none.
    """

    documents: int
    rows: int
    seed: int | None

    @property
    def parts(self) -> int:
        """Parts of a document, so that there are units for all rows."""
        return -(-self.rows // self.documents)

    @property
    def units(self) -> int:
        """Units of an epoch."""
        return self.documents * self.parts

    def visit(self, row: int, epoch: int, index: int) -> Visit | None:
        """The `index`-th visit of a row in an epoch; None behind its last one.

        >>> order = VisitOrder(documents=5, rows=2, seed=None)
        >>> [order.visit(1, 0, index).document for index in range(2)], order.visit(1, 0, 2)
        ([1, 3], None)
        """
        place = (row + epoch) % self.rows + index * self.rows
        if place >= self.units:
            return None
        if self.seed is not None:
            place = index_shuffle(
                place,
                max_index=self.units - 1,
                seed=seed_of_epoch(self.seed, epoch),
                rounds=CIPHER_ROUNDS,
            )
        document, part = divmod(place, self.parts)
        return Visit(document=document, part=part, parts=self.parts)


@lru_cache(maxsize=EPOCHS_AT_A_TIME)
def seed_of_epoch(seed: int, epoch: int) -> int:
    """A 32-bit seed for one epoch; runs with neighbouring seeds share no epoch's order."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
