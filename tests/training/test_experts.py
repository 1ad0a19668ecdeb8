"""Mixtures of experts with a capacity, on one chip and over the mesh axis `expert`."""

import numpy as np
import pytest

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.training.experts import Dispatch, parse_dispatch
from tests.training import tiny

BATCHES = [tiny.packed(seed) for seed in range(3)]


def run(layout: Layout, dispatch: Dispatch) -> tuple[list[float], list[float]]:
    plan = tiny.planned(tiny.architecture(**tiny.EXPERTS), layout)
    _, metrics = tiny.trainer(plan, dispatch=dispatch).run(BATCHES)
    return [float(m.loss) for m in metrics], [float(m.dropped) for m in metrics]


def test_room_for_all_is_dropless() -> None:
    """With E / k = 2 times its fair share, an expert can take every token."""
    wanted, dropped = run(Layout(), Dispatch())
    assert dropped == [0.0] * 3
    for layout in (Layout(), Layout(data=2, expert=2, tensor=2)):
        losses, dropped = run(layout, Dispatch(kind="capacity", capacity_factor=2.0))
        assert dropped == [0.0] * 3
        assert losses == pytest.approx(wanted, rel=3e-6)


def test_too_little_room_drops_a_stated_share() -> None:
    """256 tokens of 2 choices; 4 experts of ceil(0.25 * 512 / 4) = 32 rows take 128 at most."""
    _, dropped = run(Layout(), Dispatch(kind="capacity", capacity_factor=0.25))
    for batch, share in zip(BATCHES, dropped, strict=True):
        choices = 2 * np.count_nonzero(batch.segments)
        assert share >= 1 - 128 / choices - 1e-6
        assert share < 1


@pytest.mark.parametrize(
    "text", ["", "drop", "dropless=2", "capacity=0", "capacity=-1", "capacity=nan",
             "capacity=inf", "capacity=x"],
)  # fmt: skip
def test_refuses_what_is_no_dispatch(text: str) -> None:
    with pytest.raises(BadInput, match=r"write dropless, capacity or capacity=1\.5"):
        parse_dispatch(text)
