"""Which bandwidth each kind of traffic gets in the closed form: the book's M_X and M_Y."""

import pytest

from muster.hardware import parse_cluster
from muster.roofline.links import Links, links_of, torus_axes

V5P, V5E = 1.8e11, 9e10


@pytest.mark.parametrize(
    ("hardware", "axes"),
    [
        ("v5p:16x20x28", [1, 1, 1]),
        ("v5p:4x4x4", [1, 1, 1]),
        ("v5p:2x4x4", [0.5, 0.5, 0.5]),  # not whole cubes: lines
        ("v5p:2x2x1", [0.5, 0.5]),
        ("v5e:16x16", [1, 1]),
        ("v5e:8x16", [0.5, 1]),
        ("v5e:8x8", [0.5, 0.5]),
        ("v5e-1", []),
    ],
)
def test_an_axis_that_does_not_wrap_around_counts_half(hardware: str, axes: list[float]) -> None:
    """A chip at the end of a line receives from one side only."""
    assert torus_axes(parse_cluster(hardware).slice) == axes


@pytest.mark.parametrize(
    ("hardware", "tensor", "fsdp", "of_tensor"),
    [
        ("v5p:16x20x28", 1, 3 * V5P, V5P),
        ("v5p:16x20x28", 4, 2 * V5P, V5P),
        ("v5e:16x16", 1, 2 * V5E, V5E),
        ("v5e:16x16", 4, V5E, V5E),
        ("v5e:8x8", 1, V5E, V5E / 2),
        ("v5e:8x8", 4, V5E / 2, V5E / 2),
        ("v5e:8x16", 4, V5E, V5E / 2),
    ],
)
def test_tensor_parallelism_has_one_axis_and_fsdp_the_others(
    hardware: str, tensor: int, fsdp: float, of_tensor: float
) -> None:
    links = links_of(parse_cluster(hardware), tensor=tensor)
    assert links == Links(fsdp=fsdp, tensor=of_tensor, dcn=None)


@pytest.mark.parametrize(
    ("hardware", "tensor", "fsdp"),
    [
        ("h100:8", 1, 450e9),
        ("h100:512", 1, 8 * 50e9),  # every GPU of a node brings in an eighth
        ("h100:512", 2, 4 * 50e9),
        ("h100:512", 8, 50e9),
        ("gb200:576", 1, 900e9),  # 72 rails are more than NVLink passes on
    ],
)
def test_gpus_bring_in_their_share_over_their_own_rail(
    hardware: str, tensor: int, fsdp: float
) -> None:
    links = links_of(parse_cluster(hardware), tensor=tensor)
    assert links.fsdp == fsdp
    assert links.tensor == (900e9 if hardware.startswith("gb") else 450e9)


@pytest.mark.parametrize(
    ("hardware", "dcn"), [("4xv5p:16x20x28", 6.25e9), ("2xv5p:4x4x4", 6.25e9), ("v5p:4x4x4", None)]
)
def test_between_slices(hardware: str, dcn: float | None) -> None:
    assert links_of(parse_cluster(hardware), tensor=1).dcn == dcn
