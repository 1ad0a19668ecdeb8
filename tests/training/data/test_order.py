"""Rows share every epoch; the order follows from seed and epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.training.data.order import VisitOrder, seed_of_epoch

type Unit = tuple[int, int]


def visits(order: VisitOrder, row: int, epoch: int) -> list[Unit]:
    """(document, part) of every visit of a row's epoch."""
    found: list[Unit] = []
    while (visit := order.visit(row, epoch, len(found))) is not None:
        assert visit.parts == order.parts
        found.append((visit.document, visit.part))
    return found


@given(
    documents=st.integers(1, 60),
    rows=st.integers(1, 12),
    seed=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
    epoch=st.integers(0, 5),
)
def test_the_rows_share_every_epoch_evenly(
    documents: int, rows: int, seed: int | None, epoch: int
) -> None:
    order = VisitOrder(documents=documents, rows=rows, seed=seed)
    of_rows = [visits(order, row, epoch) for row in range(rows)]
    everything = sorted(unit for row in of_rows for unit in row)
    assert everything == [(n, part) for n in range(documents) for part in range(order.parts)]
    counts = [len(row) for row in of_rows]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert order.parts == 1 or documents < rows


def whole(order: VisitOrder, epoch: int) -> list[Unit]:
    return [unit for row in range(order.rows) for unit in visits(order, row, epoch)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        (seed, epoch): tuple(whole(VisitOrder(documents=97, rows=4, seed=seed), epoch))
        for seed in range(6)
        for epoch in range(6)
    }
    assert len(set(orders.values())) == len(orders)
    assert len({seed_of_epoch(seed, epoch) for seed, epoch in orders}) == len(orders)


def test_without_a_shuffle_the_order_is_the_given_one() -> None:
    order = VisitOrder(documents=10, rows=2, seed=None)
    assert [document for document, _ in visits(order, 0, 0)] == [0, 2, 4, 6, 8]
    assert [document for document, _ in visits(order, 1, 0)] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_row_sees_every_document_in_the_end(seed: int | None) -> None:
    order = VisitOrder(documents=9, rows=3, seed=seed)
    seen = {document for epoch in range(30) for document, _ in visits(order, 1, epoch)}
    assert seen == set(range(9))


def test_a_shuffle_moves_most_documents_far() -> None:
    order = VisitOrder(documents=1000, rows=1, seed=1)
    moved = [abs(document - place) for place, (document, _) in enumerate(visits(order, 0, 0))]
    assert sum(moved) / len(moved) == pytest.approx(1000 / 3, rel=0.1)  # of a random permutation
