"""Where gradients are cut before they are scattered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.training.parts import TILE, WORTH_A_CUT, is_scattered, parts, ranges

CHIPS = (4, 64, 128, 256, 512)


@given(columns=st.integers(1, 300_000), axes=st.integers(0, 3), chips=st.sampled_from(CHIPS))
def test_parts_are_all_columns_and_the_largest_come_first(
    columns: int, axes: int, chips: int
) -> None:
    widths = parts(columns, axes=axes, chips=chips)
    assert sum(widths) == columns
    assert all(widths)
    assert list(widths) == sorted(widths, reverse=True)
    assert [part.stop - part.start for part in ranges(widths)] == list(widths)
    assert [part.start for part in ranges(widths)][1:] == [part.stop for part in ranges(widths)][
        :-1
    ]
    for width in widths[:-1]:
        assert width % (2 * axes * TILE) == 0
        assert is_scattered(width // TILE, chips)


# The vocabularies and d_ff of LLaMA 1 to 3, Mistral, Qwen.
@pytest.mark.parametrize("columns", [128256, 32000, 151936, 28672, 14336, 53248, 11008, 8192])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("chips", CHIPS)
def test_little_is_left_over(columns: int, axes: int, chips: int) -> None:
    *_, rest = parts(columns, axes=axes, chips=chips)
    assert rest == columns or rest < WORTH_A_CUT * TILE


# By the TPU compiler, libtpu 0.0.50.1: `psum_scatter` alone of bf16 rows on v5p.
@pytest.mark.parametrize(
    ("chips", "scattered", "summed"),
    [
        (64, (112, 224, 1000, 1003, 1008, 582, 388), (1002, 1004, 678, 452, 762)),
        (
            512,
            (40, 56, 66, 78, 112, 128, 144, 156, 162, 176, 192, 198, 208, 216, 224, 256),
            (42, 60, 120, 168, 204, 210, 222, 232, 240, 244, 248, 252),
        ),
    ],
)
def test_what_the_compiler_scatters(
    chips: int, scattered: tuple[int, ...], summed: tuple[int, ...]
) -> None:
    assert [tiles for tiles in scattered if not is_scattered(tiles, chips)] == []
    assert [tiles for tiles in summed if is_scattered(tiles, chips)] == []


def test_among_more_devices_fewer_numbers_are_scattered() -> None:
    """996 tiles, the most of LLaMA-3's vocabulary that divide by 6, were summed whole among 128."""
    assert is_scattered(996, 64)
    assert not is_scattered(996, 128)
    assert parts(128256, axes=3, chips=128)[0] < 996 * TILE
