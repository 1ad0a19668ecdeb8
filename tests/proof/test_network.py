"""Times of collectives against the book's formulas, on links of one byte a second."""

from dataclasses import replace

import pytest

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.proof.hlo.collectives import Collective
from muster.proof.hlo.strategy import Strategy
from muster.proof.network import Interconnect, interconnect

V = 1024
RING = Strategy(emitter="1DAllGatherOnMajorDim")


def on(
    shape: tuple[int, int, int], wrap: tuple[bool, bool, bool], per_chip: int = 1
) -> Interconnect:
    places = tuple(
        (x, y, z, core, 0)
        for x in range(shape[0])
        for y in range(shape[1])
        for z in range(shape[2])
        for core in range(per_chip)
    )
    return Interconnect(
        shape=shape,
        wrap=wrap,
        link=1.0,
        dcn=0.5,
        hop_seconds=0.0,
        devices_per_chip=per_chip,
        places=places,
    )


def exchange(
    kind: str, *groups: tuple[int, ...], ways: int | None = None, strategy: Strategy = RING
) -> Collective:
    return Collective(
        kind=kind,
        axes=("fsdp",) if groups else ("slice",),
        ways=ways or len(groups[0]),
        count=1,
        array_bytes=V,
        bytes_per_chip=0.0,
        strategy=strategy,
        asynchronous=False,
        groups=groups,
    )


OPEN, CLOSED = (False,) * 3, (True,) * 3
LINE = on((1, 1, 8), OPEN)
CIRCLE = on((1, 1, 8), (False, False, True))
CUBE = on((4, 4, 4), CLOSED)


def nd(colors: int, torus: tuple[str, ...], name: str = "StrategyND") -> Strategy:
    return Strategy(emitter="e", name=name, colors=colors, rings=(4,) * len(torus[0]), torus=torus)


@pytest.mark.parametrize(
    ("links", "what", "seconds"),
    [
        # A line brings an array in from one side, a ring from two.
        (LINE, exchange("all-gather", tuple(range(8))), V * 7 / 8),
        (CIRCLE, exchange("all-gather", tuple(range(8))), V * 7 / 8 / 2),
        (CIRCLE, exchange("reduce-scatter", tuple(range(8))), V * 7 / 8 / 2),
        (CIRCLE, exchange("all-reduce", tuple(range(8))), V * 7 / 8),
        # Every other chip of a ring: a closed path, whose links two groups share.
        (CIRCLE, exchange("all-gather", (0, 2, 4, 6)), V * 3 / 4),
        # Two neighbours have one link.
        (LINE, exchange("all-gather", (0, 1)), V / 2),
        # Three axes at once, both ways, of the whole cube; one color takes one axis at a time.
        (CUBE, exchange("all-reduce", tuple(range(64)), strategy=nd(3, ("xyz", "yzx", "zxy"))),
         2 * V * 63 / 64 / 6),
        (CUBE, exchange("all-reduce", tuple(range(64)), strategy=nd(1, ("xyz",))),
         2 * V * 63 / 64 / 2),
        (CUBE, exchange("all-reduce", tuple(range(64)),
                        strategy=nd(6, ("xyz", "yzx", "zxy"), "UniDirectionNDRingStrategy")),
         2 * V * 63 / 64 / 6),
        # A path through all of a 4 x 4 plane comes back to where it began.
        (on((4, 4, 1), OPEN), exchange("all-gather", tuple(range(16))), V * 15 / 16 / 2),
        (on((4, 4, 1), OPEN),
         exchange("all-gather", tuple(range(16)), strategy=Strategy(emitter="2DAllGather")),
         V * 15 / 16 / 2),
        # AllToAll: V n / 4 bytes cross the middle of a ring, over two links each way.
        (CIRCLE, exchange("all-to-all", tuple(range(8))), V),
        (LINE, exchange("all-to-all", tuple(range(8))), 2 * V),
        # A shift by one along a line sends its last array back over all of it, the other way.
        (LINE, exchange("collective-permute", *((n, (n + 1) % 8) for n in range(8))), V),
        (CIRCLE, exchange("collective-permute", *((n, (n + 1) % 8) for n in range(8))), V),
        # A shift by two crosses every link twice.
        (CIRCLE, exchange("collective-permute", *((n, (n + 2) % 8) for n in range(8))), 2 * V),
        # Between two slices half of a sum is sent, and half of it comes back: V at half a byte/s.
        (LINE, exchange("all-reduce", ways=2), 2 * V),
        (LINE, exchange("all-gather", (0,)), 0.0),
    ],
)  # fmt: skip
def test_seconds(links: Interconnect, what: Collective, seconds: float) -> None:
    assert links.seconds(what) == pytest.approx(seconds)


def test_all_of_a_slice_needs_no_places() -> None:
    links = on((4, 4, 1), (True, True, False))
    both = Strategy(emitter="2DAllGatherNonMajorDim", rings=(16,))
    gather = exchange("all-gather", tuple(range(16)), strategy=both)
    assert links.seconds(gather) == pytest.approx(V * 15 / 16 / 4)
    assert replace(links, places=()).seconds(gather) == links.seconds(gather)


def test_two_devices_of_a_chip_share_its_links() -> None:
    """A group of one device a chip has half of the links; one of both has all of them."""
    links = on((1, 1, 4), (False, False, True), per_chip=2)
    apart = links.seconds(exchange("all-gather", (0, 2, 4, 6), (1, 3, 5, 7)))
    together = links.seconds(exchange("all-gather", tuple(range(8))))
    assert apart == pytest.approx(V * 3 / 4)
    assert together == pytest.approx(V * 7 / 8 / 2)


def test_chips_that_stand_apart() -> None:
    assert CIRCLE.apart(exchange("all-gather", (0, 2, 4, 6))) == 2
    assert CIRCLE.apart(exchange("all-gather", tuple(range(8)))) == 1
    assert CIRCLE.apart(exchange("collective-permute", (0, 2), (2, 4))) == 1


def test_hops_cost_time() -> None:
    slow = replace(CIRCLE, hop_seconds=1.0)
    what = exchange("all-gather", tuple(range(8)))
    assert slow.seconds(what) - CIRCLE.seconds(what) == pytest.approx(3.5)


def test_tracks() -> None:
    assert LINE.tracks(exchange("all-gather", (0, 1))) == ("ICI z up", "ICI z down")
    assert LINE.tracks(exchange("collective-permute", (0, 1), (1, 2))) == ("ICI z up",)
    assert LINE.tracks(exchange("collective-permute", (1, 0), (2, 1))) == ("ICI z down",)
    assert LINE.tracks(exchange("all-reduce", ways=2)) == ("DCN",)
    nowhere = replace(LINE, places=())
    assert nowhere.tracks(exchange("all-gather", (0, 1))) == ("ICI fsdp up", "ICI fsdp down")


def test_different_axes_of_one_mesh_axis_run_at_once() -> None:
    along_x = CUBE.tracks(exchange("all-gather", (0, 16, 32, 48)))
    along_z = CUBE.tracks(exchange("all-gather", (0, 1, 2, 3)))
    assert along_x == ("ICI x up", "ICI x down")
    assert along_z == ("ICI z up", "ICI z down")


def test_devices_of_a_chip_have_wires_of_their_own() -> None:
    links = on((1, 1, 4), (False, False, True), per_chip=2)
    what = exchange("all-gather", (0, 1), (2, 3))
    assert links.tracks(what) == ("chip",)
    assert links.seconds(what) == pytest.approx(V / 2 / 6)


def test_links_of_the_catalogue() -> None:
    v5p = interconnect(parse_cluster("v5p:4x4x4"))
    assert v5p.wrap == CLOSED
    assert 0.5 * 9e10 < v5p.link <= 1e11
    with pytest.raises(BadInput, match="no torus"):
        interconnect(parse_cluster("h100:8"))
