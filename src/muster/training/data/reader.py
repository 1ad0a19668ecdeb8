"""Batches of one host's rows, and the place in the corpus where each row stands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.errors import BadInput
from muster.training.batch import Batch
from muster.training.data.documents import Ids, Source
from muster.training.data.order import Visit, VisitOrder
from muster.training.data.packing import Rows, chain_of, part_of
from muster.training.data.tokenizer import Tokenizer

type State = np.ndarray[tuple[int, int], np.dtype[np.int64]]

EMPTY: Ids = np.empty(0, np.int32)
PASSES_WITHOUT_TEXT = 8  # over the corpus; one would do if the shuffle had no luck in it


@dataclass(kw_only=True)
class Place:
    """Where a row stands: the next token to read is `offset` tokens into a visit.

    Attributes:
        epoch: from 0.
        index: of the visit within the row's epoch.
        offset: tokens of it that were read.
    """

    epoch: int
    index: int
    offset: int


class Chains:
    """The chains of documents: read, tokenized, and checked."""

    def __init__(self, source: Source, tokenizer: Tokenizer, *, vocab_size: int) -> None:
        """Read documents from `source`; ready ids in it must lie below `vocab_size`."""
        self._source = source
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def of(self, documents: Sequence[int]) -> list[Ids]:
        """The chain of each document."""
        read = [self._source[document] for document in documents]
        texts = [item.content for item in read if isinstance(item.content, str) and item.content]
        tokenized = iter(self._tokenizer.encode(texts))
        chains = []
        for document, item in zip(documents, read, strict=True):
            if isinstance(item.content, str):
                ids = next(tokenized) if item.content else EMPTY
                if not item.ends and len(ids) and ids[-1] == self._tokenizer.end:
                    ids = ids[:-1]  # the tokenizer's template ends every text, pieces too
            else:
                ids = self._checked(item.content, document)
            chains.append(chain_of(ids, end=self._tokenizer.end if item.ends else None))
        return chains

    def _checked(self, ids: Ids, document: int) -> Ids:
        """Ready ids, which must be in the vocabulary."""
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise BadInput(
                f"{self._source.where(document)} holds the token id {wrong} and the model's"
                f" vocab_size is {self._vocab_size}"
            )
        return ids


class RowReader:
    """Makes the batches of some rows; its state is where every row stands."""

    def __init__(
        self,
        chains: Chains,
        order: VisitOrder,
        *,
        rows: range,
        sequence_length: int,
        packing: bool,
        epochs: int | None,
    ) -> None:
        """Make the rows `rows` of the global batch, from the corpus' beginning."""
        self._chains = chains
        self._order = order
        self._rows = rows
        self._sequence_length = sequence_length
        self._packing = packing
        self._epochs = epochs
        self.set_state(np.zeros((len(rows), 3), np.int64))

    def get_state(self) -> State:
        """(epoch, visit, offset) of every row [R, 3]."""
        places = [(place.epoch, place.index, place.offset) for place in self._places]
        return np.array(places, np.int64)

    def set_state(self, state: State) -> None:
        """Continue from a state [R, 3] of these rows."""
        assert state.shape == (len(self._rows), 3), state.shape
        self._places = [
            Place(epoch=epoch, index=index, offset=offset)
            for epoch, index, offset in state.tolist()
        ]
        self._open: dict[int, Ids] = {}  # the chain that a row is in the middle of

    def __next__(self) -> Batch:
        """The next batch [R, T]; only padding when all rows have ended."""
        rows = Rows(len(self._rows), self._sequence_length)
        unfilled = list(range(len(self._rows)))
        empty_visits = 0
        while unfilled:
            unfilled = self._load(unfilled)
            added = sum(self._fill(rows, row) for row in unfilled)
            empty_visits = 0 if added else empty_visits + len(unfilled)
            if empty_visits > PASSES_WITHOUT_TEXT * (self._order.units + self._order.rows):
                raise BadInput("the data holds no text: all documents are empty")
            unfilled = [row for row in unfilled if not self._filled(rows, row)]
        return rows.batch()

    def _load(self, unfilled: list[int]) -> list[int]:
        """Open the next document of the rows that are in none; return those that have not ended."""
        wanted = {}
        for row in unfilled:
            if row not in self._open:
                visit = self._visit(row)
                if visit is not None:
                    wanted[row] = visit
        chains = self._chains.of([visit.document for visit in wanted.values()])
        for (row, visit), chain in zip(wanted.items(), chains, strict=True):
            self._open[row] = part_of(chain, visit.part, visit.parts)
        return [row for row in unfilled if row in self._open]

    def _visit(self, row: int) -> Visit | None:
        """What a row is to read; behind its last visit of an epoch, the first of the next one."""
        place = self._places[row]
        while self._epochs is None or place.epoch < self._epochs:
            visit = self._order.visit(self._rows[row], place.epoch, place.index)
            if visit is not None:
                return visit
            place.epoch, place.index, place.offset = place.epoch + 1, 0, 0
        return None

    def _fill(self, rows: Rows, row: int) -> int:
        """Add to a row what it has open, and leave the document if that was all of it."""
        place, chain = self._places[row], self._open[row]
        length = len(chain) - 1
        count = 0
        if place.offset < length:
            count = rows.add(row, chain, offset=place.offset)
            place.offset += count
        if place.offset >= length or not self._packing:
            del self._open[row]
            place.index, place.offset = place.index + 1, 0
        return count

    def _filled(self, rows: Rows, row: int) -> bool:
        """Whether a row takes no more documents."""
        used = rows.room(row) < self._sequence_length
        return rows.room(row) == 0 or (used and not self._packing)
