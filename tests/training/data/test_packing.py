"""Rows hold every token once, with its true next token."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.training.batch import Batch
from muster.training.data.documents import Ids
from muster.training.data.packing import NOTHING, Rows, chain_of, part_of

END = 9_999_999
lengths = st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=20)
ends = st.sampled_from([END, None])
widths = st.integers(min_value=1, max_value=33)


def ids_of(document: int, length: int) -> Ids:
    """Ids that no other document has and that tell their place."""
    return np.arange(length, dtype=np.int32) + 1000 * (document + 1)


def packed(chains: list[Ids], T: int) -> list[Batch]:
    """One row after the other, as a single row of the batch reads a corpus."""
    batches, rows = [], Rows(1, T)
    for chain in chains:
        offset = 0
        while offset < len(chain) - 1:
            if not rows.room(0):
                batches.append(rows.batch())
                rows = Rows(1, T)
            offset += rows.add(0, chain, offset=offset)
    return [*batches, rows.batch()]


def flat(batches: list[Batch], leaf: str) -> list[int]:
    return np.concatenate([np.asarray(getattr(batch, leaf))[0] for batch in batches]).tolist()


def segments_of(batch: Batch) -> Iterator[slice]:
    """The segments of row 0, as slices."""
    segments = np.asarray(batch.segments)[0]
    for number in range(1, segments.max() + 1):
        at = np.flatnonzero(segments == number)
        assert at.tolist() == list(range(at[0], at[-1] + 1))
        yield slice(int(at[0]), int(at[-1]) + 1)


@given(lengths, widths, ends)
def test_no_token_is_lost_and_every_target_is_the_true_next_token(
    sizes: list[int], T: int, end: int | None
) -> None:
    documents = [ids_of(number, size) for number, size in enumerate(sizes)]
    batches = packed([chain_of(ids, end=end) for ids in documents], T)
    real = [number > 0 for number in flat(batches, "segments")]
    tokens = [
        token for token, is_real in zip(flat(batches, "tokens"), real, strict=True) if is_real
    ]
    targets = [
        (target if weight else None)
        for target, weight, is_real in zip(
            flat(batches, "targets"), flat(batches, "weights"), real, strict=True
        )
        if is_real
    ]
    assert tokens == [token for ids in documents for token in ids.tolist()]
    assert targets == [token for ids in documents for token in [*ids.tolist()[1:], end]]


@given(lengths, widths, ends)
def test_weights_are_zero_on_padding_and_where_nothing_follows_alone(
    sizes: list[int], T: int, end: int | None
) -> None:
    documents = [ids_of(number, size) for number, size in enumerate(sizes)]
    last = {ids[-1] for ids in documents}
    for batch in packed([chain_of(ids, end=end) for ids in documents], T):
        for token, segment, weight, target in zip(
            *(np.asarray(getattr(batch, leaf))[0] for leaf in LEAVES), strict=True
        ):
            nothing_follows = segment == 0 or (end is None and token in last)
            assert weight == (0.0 if nothing_follows else 1.0)
            assert not nothing_follows or target == 0


LEAVES = ("tokens", "segments", "weights", "targets")


@given(lengths, widths)
def test_positions_start_at_zero_in_every_segment(sizes: list[int], T: int) -> None:
    chains = [chain_of(ids_of(number, size), end=END) for number, size in enumerate(sizes)]
    for batch in packed(chains, T):
        positions = np.asarray(batch.positions)[0]
        covered = np.zeros(T, bool)
        for segment in segments_of(batch):
            assert positions[segment].tolist() == list(range(segment.stop - segment.start))
            owners = np.asarray(batch.tokens)[0, segment] // 1000
            assert (owners == owners[0]).all(), "a segment of two documents"
            covered[segment] = True
        assert not positions[~covered].any()
        assert (np.diff(covered.astype(int)) <= 0).all(), "padding before a token"


@given(lengths, widths)
def test_a_document_is_one_segment_of_a_row(sizes: list[int], T: int) -> None:
    chains = [chain_of(ids_of(number, size), end=END) for number, size in enumerate(sizes)]
    for batch in packed(chains, T):
        owners = [np.asarray(batch.tokens)[0, part][0] // 1000 for part in segments_of(batch)]
        assert len(set(owners)) == len(owners)


@given(
    st.integers(min_value=2, max_value=60),
    widths,
    st.data(),
)
def test_a_token_reaches_itself_and_the_target_before_it_alone(
    length: int, T: int, data: st.DataObject
) -> None:
    changed_at = data.draw(st.integers(min_value=0, max_value=length - 1))
    ids = ids_of(0, length)
    other = ids.copy()
    other[changed_at] = 5
    before, after = (packed([chain_of(each, end=END)], T) for each in (ids, other))
    differs = [
        np.flatnonzero(np.array(flat(before, leaf)) != np.array(flat(after, leaf))).tolist()
        for leaf in ("tokens", "targets", "positions", "segments", "weights")
    ]
    assert differs == [[changed_at], [changed_at - 1] if changed_at else [], [], [], []]


@given(st.integers(0, 50), st.integers(1, 9), ends)
def test_the_parts_of_a_chain_are_all_of_it(length: int, parts: int, end: int | None) -> None:
    chain = chain_of(ids_of(0, length), end=end)
    cut = [part_of(chain, part, parts) for part in range(parts)]
    assert np.concatenate([part[:-1] for part in cut]).tolist() == chain[:-1].tolist()
    assert np.concatenate([part[1:] for part in cut]).tolist() == chain[1:].tolist()
    sizes = [len(part) - 1 for part in cut]
    assert max(sizes) - min(sizes) <= 1


def test_rows_are_apart_and_of_the_stated_types() -> None:
    rows = Rows(2, 4)
    assert rows.empty
    assert rows.add(1, chain_of(np.array([5, 6], np.int32), end=None)) == 2
    assert not rows.empty
    assert (rows.room(0), rows.room(1)) == (4, 2)
    batch = rows.batch()
    assert np.asarray(batch.tokens).tolist() == [[0, 0, 0, 0], [5, 6, 0, 0]]
    assert np.asarray(batch.targets).tolist() == [[0, 0, 0, 0], [6, 0, 0, 0]]
    assert np.asarray(batch.weights).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    for leaf in ("tokens", "targets", "positions", "segments"):
        assert getattr(batch, leaf).dtype == np.int32
    assert batch.weights.dtype == np.float32


def test_an_empty_document_has_no_tokens() -> None:
    assert chain_of(np.empty(0, np.int32), end=3).tolist() == [NOTHING]
