"""The stream of batches: deterministic, sharded over hosts, resumable.

    corpus -> visits of each row -> chains -> rows of T tokens -> a background thread -> batches

Host p of P makes the rows p B/P to (p + 1) B/P - 1 of every global batch and reads only their
documents. Where each row stands is a state of three numbers a row: (epoch, visit in it, tokens of
it that were read). That is all there is to save, whatever the number of hosts before and after.

With `epochs` a stream ends, and the rows do not end at the same step. What lacks is padding. On one
process the stream then raises StopIteration. One of several processes cannot know when the others
end, and must take part in their steps: it goes on with batches of padding, and the loop stops at
the first batch whose weights are zero on all processes.
"""

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Self, cast

import numpy as np
from grain.experimental import ThreadPrefetchDatasetIterator

from muster.errors import BadInput
from muster.training.batch import Batch
from muster.training.data.config import DataConfig
from muster.training.data.order import MOST_UNITS, VisitOrder
from muster.training.data.reader import Chains, RowReader, State
from muster.training.data.sources import Corpus, Description, open_corpus
from muster.training.data.tokenizer import NoTokenizer, Tokenizer, open_tokenizer

PREFETCHED_BATCHES = 2  # one to hand out, one in the making behind it
SURELY_BYTES_PER_TOKEN = 16  # text of four times the usual bytes a token needs no counting


class Stream(Iterator[Batch]):
    """Batches of one host's rows; `state()` is that of the last batch handed out.

    Attributes:
        description: what the corpus is.
    """

    def __init__(
        self, reader: RowReader, description: Description, *, rows: range, of_rows: int, ends: bool
    ) -> None:
        """Hand out what `reader` makes of the rows `rows` of `of_rows`.

        Args:
            reader: makes the batches, in a background thread.
            description: what the corpus is.
            rows: this host's rows.
            of_rows: rows of the global batch.
            ends: raise StopIteration at a batch of padding alone.
        """
        self.description = description
        self._rows = rows
        self._of_rows = of_rows
        self._ends = ends
        # In a list, so that it goes with this object or before the interpreter does: later, when
        # modules are torn down, it can no longer close itself.
        self._opened = [ThreadPrefetchDatasetIterator(reader, PREFETCHED_BATCHES)]
        weakref.finalize(self, self._opened.clear)

    @property
    def _batches(self) -> ThreadPrefetchDatasetIterator:
        assert self._opened, "the stream is closed"
        return self._opened[0]

    def __next__(self) -> Batch:
        """The next batch, leaves [B/P, T] of numpy."""
        batch = cast("Batch", next(self._batches))
        if self._ends and not np.any(batch.segments[:, 0]):  # rows fill from the left
            raise StopIteration
        return batch

    def state(self) -> State:
        """Where this host's rows stand behind the last batch handed out, int64 [B/P, 3]."""
        return np.array(self._batches.get_state())

    def restore(self, state: State) -> None:
        """Continue behind the batch at which the state of all rows, int64 [B, 3], was taken.

        Raises:
            BadInput: the state is of another number of rows.
        """
        if state.ndim != 2 or state.shape[1] != 3:
            raise BadInput(f"a data state of shape {list(state.shape)} is not [sequences, 3]")
        if state.shape[0] != self._of_rows:
            raise BadInput(
                f"the data state is of a batch of {state.shape[0]} sequences and this batch has"
                f" {self._of_rows}; resume with --batch {state.shape[0]}seq"
            )
        self._batches.set_state(np.asarray(state[self._rows.start : self._rows.stop], np.int64))

    def close(self) -> None:
        """Stop the background thread."""
        if self._opened:
            self._opened.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_stream(
    config: DataConfig,
    vocab_size: int,
    *,
    process_index: int = 0,
    process_count: int = 1,
    eos_token_id: int | None = None,
) -> Stream:
    """Open the data of a run, at its beginning.

    Args:
        config: what to train on.
        vocab_size: V of the model; ids lie below it.
        process_index: p, this host.
        process_count: P, all hosts.
        eos_token_id: the end-of-document id of the model's config, if it has one.

    Raises:
        BadInput: the data, the tokenizer or their numbers cannot be used.
    """
    config.check()
    rows = rows_of_process(config.batch_sequences, process_index, process_count)
    if config.synthetic:
        tokenizer: Tokenizer = NoTokenizer(end=eos_token_id or 0)
    else:
        tokenizer = open_tokenizer(
            config.tokenizer, vocab_size=vocab_size, eos_token_id=eos_token_id
        )
    corpus = open_corpus(config, vocab_size=vocab_size)
    chains = Chains(corpus.source, tokenizer, vocab_size=vocab_size)
    check_size(corpus, chains, config)
    order = VisitOrder(
        documents=len(corpus.source),
        rows=config.batch_sequences,
        seed=config.seed if config.shuffle else None,
    )
    reader = RowReader(
        chains,
        order,
        rows=rows,
        sequence_length=config.sequence_length,
        packing=config.packing,
        epochs=config.epochs,
    )
    return Stream(
        reader,
        corpus.description,
        rows=rows,
        of_rows=config.batch_sequences,
        ends=process_count == 1,
    )


def rows_of_process(batch_sequences: int, process_index: int, process_count: int) -> range:
    """The rows of the global batch that a process makes.

    >>> rows_of_process(8, 1, 4)
    range(2, 4)

    Raises:
        BadInput: they do not divide.
    """
    assert 0 <= process_index < process_count
    rows, rest = divmod(batch_sequences, process_count)
    if rest:
        nearest = max(rows, 1) * process_count
        raise BadInput(
            f"a batch of {batch_sequences} sequences does not divide over {process_count}"
            f" processes; --batch {nearest}seq does"
        )
    return range(process_index * rows, (process_index + 1) * rows)


def check_size(corpus: Corpus, chains: Chains, config: DataConfig) -> None:
    """Refuse a corpus that is smaller than one batch.

    Tokens are counted only until there are enough, and not at all in a corpus of many bytes.

    Raises:
        BadInput: fewer tokens than B T, or without packing fewer documents than B.
    """
    documents, rows = len(corpus.source), config.batch_sequences
    if documents > MOST_UNITS - rows:
        raise BadInput(
            f"the data has {documents:,} documents; at most {MOST_UNITS - rows:,} are read in"
            " one run: join short ones, or give fewer files"
        )
    if not config.packing and documents < rows:
        raise BadInput(
            f"{documents} documents are fewer than the {rows} sequences of a batch, and without"
            f" packing each is one; --batch {documents}seq fits"
        )
    wanted = rows * config.sequence_length
    if config.synthetic or not config.packing:
        return
    if corpus.description.bytes >= wanted * SURELY_BYTES_PER_TOKEN:
        return
    tokens = 0
    for document in range(documents):
        tokens += len(chains.of([document])[0]) - 1
        if tokens >= wanted:
            return
    if not tokens:
        raise BadInput("the data holds no text: all documents are empty")
    raise BadInput(
        f"the data holds {tokens:,} tokens and a batch {wanted:,} ({rows} sequences of"
        f" {config.sequence_length}); {_what_fits(tokens, config)}"
    )


def _what_fits(tokens: int, config: DataConfig) -> str:
    """The batch or the sequence that a small corpus fills."""
    if tokens < config.sequence_length and tokens < config.batch_sequences:
        return f"--batch 1seq --seq {tokens} fits"
    fits = []
    if tokens >= config.sequence_length:
        fits.append(f"--batch {tokens // config.sequence_length}seq")
    if tokens >= config.batch_sequences:
        fits.append(f"--seq {tokens // config.batch_sequences}")
    return f"{' or '.join(fits)} fits"
