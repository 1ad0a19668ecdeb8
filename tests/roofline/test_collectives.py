"""Times of collectives, against the book's quizzes and against each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.roofline.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    switch_all_gather_time,
    switch_all_to_all_time,
)

BYTES = st.floats(1, 1e12)
AXES = st.lists(st.integers(1, 32), min_size=1, max_size=3).map(tuple)


def test_book_part_3_quiz_2() -> None:
    """v5e, an axis of 4 without wraparound: 560 us for 34 MB; 128 kB waits for three hops."""
    large = all_gather_time(2 * 2048 * 8192, axes=(4,), W=9e10, closed=False)
    assert large.seconds == pytest.approx(560e-6, rel=1e-2)
    small = all_gather_time(2 * 256 * 256, axes=(4,), W=9e10, closed=False)
    assert small.seconds == pytest.approx(3e-6)
    assert small.bound == "latency"


def test_book_part_12_quiz_1() -> None:
    time = switch_all_gather_time(2 * 1024 * 16384, ways=8, egress=450e9)
    assert time.seconds == pytest.approx(65e-6, rel=1e-2)


def test_all_to_all_is_a_quarter_of_a_gather_on_a_long_ring() -> None:
    gather = all_gather_time(1e9, axes=(16,), W=1.8e11).bandwidth_seconds * 16 / 15
    assert all_to_all_time(1e9, ways=16, W=1.8e11).bandwidth_seconds == pytest.approx(gather / 4)


def test_all_to_all_behind_a_switch() -> None:
    time = switch_all_to_all_time(1e9, ways=8, egress=450e9)
    assert time.bandwidth_seconds == pytest.approx(1e9 * 7 / (64 * 450e9))


def test_nothing_to_send_takes_no_time() -> None:
    assert all_gather_time(1e9, axes=(1, 1), W=1e11).seconds == 0
    assert all_reduce_time(1e9, axes=(1,), W=1e11).seconds == 0
    assert all_to_all_time(1e9, ways=1, W=1e11).seconds == 0
    assert switch_all_gather_time(1e9, ways=1, egress=1e11).seconds == 0
    assert switch_all_to_all_time(1e9, ways=1, egress=1e11).seconds == 0


@given(V=BYTES, axes=AXES, W=st.floats(1e9, 1e12), closed=st.booleans())
def test_an_all_reduce_is_a_scatter_and_a_gather(
    V: float,
    axes: tuple[int, ...],
    W: float,
    closed: bool,
) -> None:
    gather = all_gather_time(V, axes=axes, W=W, closed=closed)
    scatter = reduce_scatter_time(V, axes=axes, W=W, closed=closed)
    reduce = all_reduce_time(V, axes=axes, W=W, closed=closed)
    assert reduce.seconds == pytest.approx(gather.seconds + scatter.seconds)
    assert gather.seconds <= V / (W / 2) + 1e-6 * sum(axes)


@given(V=BYTES, axes=AXES, W=st.floats(1e9, 1e12))
def test_a_ring_is_never_slower_than_a_line_nor_more_bandwidth_than_less(
    V: float, axes: tuple[int, ...], W: float
) -> None:
    ring = all_gather_time(V, axes=axes, W=W)
    assert ring.seconds <= all_gather_time(V, axes=axes, W=W, closed=False).seconds
    assert all_gather_time(V, axes=axes, W=2 * W).seconds <= ring.seconds
