"""Which rows a process reads, and how its batches lie on the mesh."""

from pathlib import Path

import jax
import numpy as np
import pytest

from muster.sharding.mesh import Layout
from muster.training.attention import balanced_order
from muster.training.data import DataConfig, open_stream
from muster.training.feed import Feed, Share, share_of_rows
from muster.training.mesh import make_mesh
from muster.training.partition import Partition
from tests.training import tiny


class Device:
    """A device that stands for one of several processes'."""

    def __init__(self, number: int, per_process: int) -> None:
        self.process_index = number // per_process


class Rows:
    """A sharding of rows over devices, device i holding `ranges[i]`."""

    def __init__(self, ranges: list[tuple[int, int]], per_process: int) -> None:
        self._ranges, self._per_process = ranges, per_process

    def devices_indices_map(self, shape: tuple[int, int]) -> dict[Device, tuple[slice, slice]]:
        assert shape[1] == 1
        return {
            Device(number, self._per_process): (slice(first, last), slice(None))
            for number, (first, last) in enumerate(self._ranges)
        }


@pytest.mark.parametrize(
    ("ranges", "per_process", "shares"),
    [
        # Each process its own half; the same rows for two devices that split tokens.
        ([(0, 2), (2, 4), (4, 6), (6, 8)], 2, [(0, 2), (1, 2)]),
        ([(0, 4), (0, 4), (4, 8), (4, 8)], 2, [(0, 2), (1, 2)]),
        # All rows in every process, whose devices split heads.
        ([(0, 8)] * 4, 2, [(0, 1), (0, 1)]),
        # Pairs of processes with the same rows.
        ([(0, 4), (0, 4), (4, 8), (4, 8)], 1, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        # Rows that are no block: read all.
        ([(0, 2), (4, 6), (2, 4), (6, 8)], 2, [(0, 1), (0, 1)]),
        # A block that starts between two blocks of its size: read all.
        ([(0, 2), (2, 6), (6, 8)], 1, [(0, 4), (0, 1), (3, 4)]),
    ],
)
def test_shares(
    ranges: list[tuple[int, int]], per_process: int, shares: list[tuple[int, int]]
) -> None:
    sharding = Rows(ranges, per_process)
    found = [share_of_rows(sharding, 8, process) for process in range(len(shares))]  # type: ignore[arg-type]
    assert found == [Share(index=index, count=count) for index, count in shares]


def test_batches_are_the_streams_in_the_meshs_order(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("many words of one document " * 40, "utf-8")
    config = DataConfig(paths=(tmp_path,), sequence_length=tiny.T, batch_sequences=tiny.B)
    layout = Layout(fsdp=2, sequence=2, tensor=2)
    place = Partition(mesh=make_mesh(layout), layout=layout)
    feed = Feed(config, 300, None, place)
    order = balanced_order(tiny.T, 2)
    try:
        with open_stream(config, 300) as stream:
            for _ in range(3):
                found, wanted = next(feed), next(stream)
                for leaf, rows in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                    assert leaf.sharding == place.tokens
                    np.testing.assert_array_equal(np.asarray(leaf), rows[:, order])
            np.testing.assert_array_equal(feed.state(), stream.state())
    finally:
        feed.close()
