"""Where gradients are cut before they are scattered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.training.parts import LARGEST_PRIME, TILE, parts, ranges


@given(columns=st.integers(1, 300_000), axes=st.integers(0, 3))
def test_parts_are_all_columns_and_the_first_is_most(columns: int, axes: int) -> None:
    widths = parts(columns, axes)
    assert sum(widths) == columns
    assert all(widths)
    assert len(widths) <= 2
    covered = [column for part in ranges(widths) for column in (part.start, part.stop)]
    assert covered[0] == 0
    assert covered[-1] == columns
    if len(widths) == 2:
        assert widths[0] % (2 * axes * TILE) == 0


# The vocabularies and d_ff of LLaMA 1 to 3, Mistral, Qwen; by the compiler 97 is scattered.
@pytest.mark.parametrize("columns", [128256, 32000, 151936, 28672, 14336, 53248, 11008, 8192])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_little_is_left_over(columns: int, axes: int) -> None:
    first, *rest = parts(columns, axes)
    tiles = first // TILE
    assert sum(rest) < 0.1 * columns
    for factor in range(LARGEST_PRIME + 1, tiles + 1):
        assert tiles % factor or any(factor % prime == 0 for prime in range(2, factor))
