"""Matmuls are never faster than their FLOPs at peak, and pad as the hardware does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.hardware import chip_by_name
from muster.roofline.matmul import SM_COUNT, TILES, MatrixUnit, matrix_unit

CHIPS = ("a100", "h100", "b200", "v4", "v5e", "v5p", "v6e", "v7x")
sizes = st.integers(min_value=1, max_value=100_000)


@given(st.sampled_from(CHIPS), sizes, sizes, sizes)
def test_padding_never_beats_the_flops_at_peak(name: str, M: int, K: int, N: int) -> None:
    unit = matrix_unit(chip_by_name(name), 1.0)
    assert unit.seconds(M, K, N) >= 2 * M * K * N / unit.flops * (1 - 1e-9)


@given(st.sampled_from(CHIPS), sizes, sizes, sizes)
def test_backward_is_two_matmuls(name: str, M: int, K: int, N: int) -> None:
    unit = matrix_unit(chip_by_name(name), 0.8)
    forward, backward = unit.training_seconds(M, K, N)
    assert forward == unit.seconds(M, K, N)
    assert backward >= 2 * 2 * M * K * N / unit.flops * (1 - 1e-9)


@given(st.sampled_from(CHIPS), sizes, sizes, sizes)
def test_more_rows_never_take_less_time(name: str, M: int, K: int, N: int) -> None:
    unit = matrix_unit(chip_by_name(name), 0.8)
    assert unit.seconds(M + 1, K, N) >= unit.seconds(M, K, N)


def test_a_systolic_array_pads_to_its_side() -> None:
    v6e = matrix_unit(chip_by_name("v6e"), 1.0)
    assert v6e.side == 256
    assert v6e.seconds(8192, 4097, 4096) == v6e.seconds(8192, 4352, 4096)


def test_tiles_come_in_whole_waves() -> None:
    a100 = matrix_unit(chip_by_name("a100"), 1.0)
    assert a100.processors == SM_COUNT["a100"] == 108
    rows, columns, _ = TILES[0]
    M, N = 12 * rows, 9 * columns  # 108 tiles
    one_wave = a100.seconds(M, 8192, N)
    assert one_wave == pytest.approx(2 * M * 8192 * N / a100.flops)
    assert a100.seconds(M + 1, 8192, N) > 1.1 * one_wave


def test_a_thin_matmul_waits_for_its_weights() -> None:
    unit = MatrixUnit(flops=1e15, side=128, processors=0, hbm_bandwidth=1e12)
    assert unit.seconds(8, 8192, 8192) > 2 * 8 * 8192 * 8192 / 1e15 * 2
    assert unit.seconds(8, 8192, 8192) >= 2 * 8192 * 8192 / 1e12
