"""Cases from public threads (numbers as in the facts' cases.md), restated as what must come out."""

import math

import pytest

from muster.errors import BadInput, UnknownName
from muster.hardware import chip_by_name, parse_cluster
from muster.units import GIB

from .lookup import torus_of


def test_case_28_a_v3_8_is_four_chips_and_eight_devices() -> None:
    slice_ = parse_cluster("v3-8").slice
    assert (slice_.shape, slice_.chips, slice_.devices, slice_.hosts) == ((2, 2), 4, 8, 1)


def test_case_29_a_whole_v5p_pod_is_legal_but_cannot_be_scheduled() -> None:
    cluster = parse_cluster("v5p:16x20x28")
    assert cluster.chips == 8960
    assert any("6144 chips (16x16x24)" in warning for warning in cluster.warnings)
    assert any("no list price" in warning for warning in cluster.warnings)
    assert parse_cluster("v5p:16x16x24").warnings == ()
    assert parse_cluster("v5p-8192").chips == 4096


def test_case_31_a_v4_256_has_less_memory_than_405b_needs() -> None:
    cluster = parse_cluster("v4-256")
    assert cluster.chips == 128
    memory = cluster.chips * cluster.chip.hbm_bytes
    assert memory == pytest.approx(4.23e12, rel=2e-3)
    assert memory < 12 * 405_853_388_800


def test_case_33_the_budget_of_a_v4_is_30_75_gib() -> None:
    cluster = parse_cluster("2xv4-384")
    assert (cluster.slices, cluster.slice.chips) == (2, 192)
    assert cluster.chip.hbm_bytes / GIB == pytest.approx(30.75, abs=0.005)
    assert cluster.chip.hbm_marketing_bytes == 32e9


@pytest.mark.parametrize(
    ("name", "chips"), [("v5p-8", 4), ("v4-2048", 1024), ("v5litepod-64", 64), ("v6e-16", 16)]
)
def test_case_38_suffixes_count_cores_or_chips(name: str, chips: int) -> None:
    assert parse_cluster(name).chips == chips


@pytest.mark.parametrize(
    ("name", "chip", "teraflops"),
    [
        ("v5e-256", "v5e", 197),
        ("v5litepod-256", "v5e", 197),
        ("TPU v5 lite-256", "v5e", 197),
        ("TPU v5-256", "v5p", 459),
    ],
)
def test_case_39_tpu_v5_is_v5p_and_tpu_v5_lite_is_v5e(name: str, chip: str, teraflops: int) -> None:
    cluster = parse_cluster(name)
    assert cluster.chip.id == chip
    assert cluster.chip.bf16_flops == teraflops * 1e12


def test_case_40_dims_ascend() -> None:
    with pytest.raises(BadInput, match="write v4:2x2x4") as error:
        parse_cluster("v4:2x4x2")
    assert "ascend" in str(error.value)


def test_case_40_a_type_may_be_given_as_a_shape() -> None:
    cluster = parse_cluster("v5p-4x8x68")
    assert cluster.chips == 2176
    assert cluster.slice.accelerator_type == "v5p-4352"
    assert parse_cluster("v5p-4352") == cluster


def test_case_40_an_ambiguous_type_is_asked_about() -> None:
    with pytest.raises(BadInput) as error:
        parse_cluster("v7x-2048")
    for shape in ("v7x:4x4x64", "v7x:4x8x32", "v7x:8x8x16"):
        assert shape in str(error.value)


def test_case_42_a_v4_64_is_32_chips_of_275_teraflops() -> None:
    cluster = parse_cluster("v4-64")
    assert cluster.chips * cluster.chip.bf16_flops == 32 * 275e12


def test_case_43_gpu_peaks_are_dense() -> None:
    assert chip_by_name("h100").bf16_flops == 989e12
    assert chip_by_name("h100").peak_flops["fp8"] == 1979e12


def test_case_44_sixteen_a100_are_two_hosts() -> None:
    assert parse_cluster("a100:16").slice.hosts == 2


def test_case_47_a_v3_device_is_a_core() -> None:
    chip = chip_by_name("v3")
    assert chip.bf16_flops / chip.devices_per_chip == 61.5e12
    assert round(36.7e12 / (chip.bf16_flops / chip.devices_per_chip), 3) == 0.597


@pytest.mark.parametrize("name", ["tpu8t", "TPU 8i"])
def test_announced_chips_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(BadInput, match="too little is published"):
        chip_by_name(name)
    assert chip_by_name(name, allow_incomplete=True).incomplete


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*v5p"):
        parse_cluster("v5q:4x4x4")
    with pytest.raises(UnknownName, match=r"choose from v2, v3, .*mi355x, cpu$"):
        parse_cluster("abacus:8")
    with pytest.raises(UnknownName, match="did you mean book"):
        parse_cluster("v5p-8", constants="boo")


def test_the_full_pod_of_the_book() -> None:
    chip = parse_cluster("v5p:16x20x28", constants="book").chip
    assert chip.constants == "book"
    assert chip.bf16_flops == 4.59e14
    assert chip.hbm_bytes == 96_000_000_000
    assert torus_of(chip).axis_bidi_bandwidth == 1.8e11
    assert torus_of(chip).dcn_bandwidth_per_chip == 6.25e9
    assert chip.bf16_flops / torus_of(chip).axis_bidi_bandwidth == 2550
    assert math.ceil(11.2e12 / chip.hbm_bytes) == 117
