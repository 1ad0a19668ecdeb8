"""The data files: every figure has a source, nothing contradicts itself, the sums agree."""

import math
import tomllib
from collections import Counter

import pytest

from muster.errors import UnknownName
from muster.hardware import (
    Chip,
    Loopback,
    Switched,
    Torus,
    accelerator_types,
    all_chips,
    chip_by_name,
    profiles,
    sources,
)
from muster.hardware.catalogue import DATA, find_id, normalise
from muster.hardware.facts import CONFIDENCE, Alternative, Fact, prefer
from muster.hardware.shapes import is_legal
from muster.units import GIB

from .lookup import rule_of, torus_of

CHIPS = {chip.id: chip for chip in all_chips()}
COMPLETE = [chip for chip in CHIPS.values() if not chip.incomplete]
TPUS = [chip for chip in COMPLETE if chip.kind == "tpu"]
OPTIONS = tomllib.loads((DATA / "compiler_options.toml").read_text(encoding="utf-8"))


def number(chip: Chip, fact_id: str) -> float:
    """The figure, zero where there is none."""
    fact = chip.fact(fact_id)
    if fact is None:
        return 0
    assert isinstance(fact.value, int | float)
    return fact.value


def test_files_and_catalogue_name_the_same_chips() -> None:
    assert {path.stem for path in (DATA / "chips").glob("*.toml")} == set(CHIPS)
    for path in (DATA / "chips").glob("*.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8"))["id"] == path.stem


def test_no_two_chips_share_a_name() -> None:
    names = Counter(
        normalised
        for chip in CHIPS.values()
        for normalised in {normalise(name) for name in (chip.id, *chip.aliases)}
    )
    assert [name for name, uses in names.items() if uses > 1] == []
    assert all(find_id(name) == chip.id for chip in CHIPS.values() for name in chip.aliases)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.id)
def test_every_figure_has_a_known_source_and_confidence(chip: Chip) -> None:
    assert chip.facts
    for fact in chip.facts:
        assert fact.sources, fact.id
        assert set(fact.sources) <= set(sources()), fact.id
        assert fact.confidence in CONFIDENCE, fact.id
        assert all(set(other.sources) <= set(sources()) for other in fact.alternatives), fact.id
        assert fact.unit or fact.id in {"release.year", "core.mxu_dim"}, fact.id
        if isinstance(fact.value, int | float):
            assert math.isfinite(fact.value), fact.id
            assert fact.value > 0, fact.id
    if chip.slices:
        assert set(chip.slices.sources) <= set(sources())


def test_every_source_is_used_or_preferred() -> None:
    used = {source for chip in CHIPS.values() for fact in chip.facts for source in fact.sources}
    used |= {
        source
        for chip in CHIPS.values()
        for fact in chip.facts
        for other in fact.alternatives
        for source in other.sources
    }
    used |= {source for chip in TPUS for source in rule_of(chip).sources}
    used |= {source for option in OPTIONS.values() for source in option["sources"]}
    assert set(sources()) - used - {"gcp_v5p_old"} == set()
    assert {source for preferred in profiles().values() for source in preferred} <= set(sources())


def test_compiler_options_are_of_chips_that_the_compiler_knows() -> None:
    for name, option in OPTIONS.items():
        assert option["what"], name
        assert set(option["sources"]) <= set(sources()), name
        for chip_id, value in option["values"].items():
            compiler = CHIPS[chip_id].compiler
            assert compiler is not None, name
            assert compiler.options[name] == value, name


@pytest.mark.parametrize("constants", ["documented", "book"])
@pytest.mark.parametrize("chip_id", [chip.id for chip in COMPLETE])
def test_every_chip_can_be_planned_on(chip_id: str, constants: str) -> None:
    chip = chip_by_name(chip_id, constants)
    figures = [chip.bf16_flops, chip.hbm_bytes, chip.hbm_marketing_bytes, chip.hbm_bandwidth]
    match chip.network:
        case Torus() as torus:
            figures += [torus.axis_bidi_bandwidth, torus.link_bandwidth]
            figures += [torus.dcn_bandwidth_per_chip, torus.dcn_bandwidth_per_host]
        case Switched() as switched:
            figures += [switched.scale_up_bandwidth, switched.scale_out_bandwidth]
            figures += [switched.scale_up_link_bandwidth, switched.domain_chips]
        case Loopback() as loopback:
            figures.append(loopback.bandwidth)
    figures += [chip.chips_per_host, chip.devices_per_chip]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert isinstance(chip.hbm_bytes, int)
    assert number(chip, "flops.bf16") == chip.bf16_flops


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.id)
def test_clock_times_matrix_units_is_the_peak(chip: Chip) -> None:
    """An MXU does dim^2 multiply-adds a cycle; v6e and 7x need two such passes (low confidence)."""
    passes = 2 if chip.id in {"v6e", "v7x"} else 1
    per_cycle = (
        number(chip, "core.tensor_cores_per_chip")
        * number(chip, "core.mxus_per_core")
        * number(chip, "core.mxu_dim") ** 2
        * 2
        * passes
    )
    assert per_cycle * number(chip, "core.clock_hz") == pytest.approx(chip.bf16_flops, rel=2e-3)


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.id)
def test_bandwidths_of_a_torus_agree(chip: Chip) -> None:
    torus, rule = torus_of(chip), rule_of(chip)
    assert torus.axis_bidi_bandwidth == 2 * torus.link_bandwidth
    assert torus.dcn_bandwidth_per_host == chip.chips_per_host * torus.dcn_bandwidth_per_chip
    assert torus.axes == rule.dims == number(chip, "network.torus_axes")
    assert number(chip, "network.links_per_chip") == 2 * torus.axes
    if documented := number(chip, "network.documented_bidi_per_chip"):
        # The docs count what a chip sends and receives; the book's figures are 0.9 of theirs.
        assert 2 * torus.axes * torus.axis_bidi_bandwidth == pytest.approx(0.9 * documented)


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.id)
def test_pods_and_documented_shapes_are_legal(chip: Chip) -> None:
    torus, rule = torus_of(chip), rule_of(chip)
    assert torus.max_pod_chips == number(chip, "network.max_pod_chips")
    assert is_legal(rule, rule.max_pod_shape)
    assert is_legal(rule, rule.max_schedulable_shape)
    assert all(is_legal(rule, shape) for shape in rule.documented)
    assert len({math.prod(shape) for shape in rule.documented}) == len(rule.documented)
    if rule.dims == 3:
        assert rule.max_cubes * 64 == torus.max_pod_chips
        assert rule.max_cubes == number(chip, "network.max_cubes")
    if stated := number(chip, "network.max_schedulable_chips"):
        assert torus.max_schedulable_chips == stated
    assert accelerator_types(chip)


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.id)
def test_memory_agrees(chip: Chip) -> None:
    per_device = number(chip, "memory.usable_bytes_per_device")
    assert chip.hbm_bytes == per_device * chip.devices_per_chip
    assert chip.hbm_bytes < number(chip, "memory.physical_bytes")


@pytest.mark.parametrize(
    ("chip_id", "gib_per_device"),
    [("v2", 7.48), ("v3", 15.48), ("v4", 30.75), ("v5e", 15.75), ("v5p", 95.73), ("v6e", 31.24)],
)
def test_usable_memory_is_what_the_compiler_says(chip_id: str, gib_per_device: float) -> None:
    chip = chip_by_name(chip_id)
    assert chip.hbm_bytes / chip.devices_per_chip / GIB == pytest.approx(gib_per_device, abs=0.005)


@pytest.mark.parametrize("chip", COMPLETE, ids=lambda chip: chip.id)
def test_gpus_scale_up_in_whole_hosts(chip: Chip) -> None:
    if isinstance(chip.network, Switched):
        domain, host = chip.network.domain_chips, chip.chips_per_host
        assert domain % host == 0 or host % domain == 0
        assert chip.network.scale_up_bandwidth > chip.network.scale_out_bandwidth


@pytest.mark.parametrize("chip", COMPLETE, ids=lambda chip: chip.id)
def test_a_gpu_offers_what_its_driver_leaves(chip: Chip) -> None:
    """A little less than the driver lists, and more than the sheet says: GiB are sold as GB."""
    if chip.kind != "gpu":
        return
    assert 0.97 * chip.hbm_marketing_bytes < chip.hbm_bytes < 1.09 * chip.hbm_marketing_bytes
    if chip.vendor == "NVIDIA":
        assert 0.96 < chip.hbm_bytes / (number(chip, "memory.driver_mib") * 2**20) < 0.998


@pytest.mark.parametrize(
    ("chip_id", "gib"), [("a100", 79.15), ("h100", 79.14), ("h200", 139.72), ("b200", 178.35)]
)
def test_usable_memory_is_what_pytorch_reports(chip_id: str, gib: float) -> None:
    assert chip_by_name(chip_id).hbm_bytes / GIB == pytest.approx(gib, abs=1e-6)


@pytest.mark.parametrize("chip", COMPLETE, ids=lambda chip: chip.id)
def test_eight_bit_rates_are_once_or_twice_the_bf16_rate(chip: Chip) -> None:
    for dtype in {"fp8", "int8"} & set(chip.peak_flops):
        assert chip.peak_flops[dtype] / chip.bf16_flops in (
            pytest.approx(1),
            pytest.approx(2, rel=6e-3),
        )


def test_the_book_profile_changes_only_what_the_book_says() -> None:
    for chip in COMPLETE:
        book = chip_by_name(chip.id, "book")
        for fact, other in zip(chip.facts, book.facts, strict=True):
            if fact.value != other.value:
                assert any(source.startswith("book") for source in other.sources), fact.id
                assert other.alternatives[0].value == fact.value
                assert other.alternatives[0].confidence == fact.confidence


@pytest.mark.parametrize(
    ("chip_id", "bf16", "hbm", "bandwidth"),
    [
        ("v3", 1.4e14, 32e9, 9e11),
        ("v4", 2.75e14, 32e9, 1.2e12),
        ("v5e", 1.97e14, 16e9, 8.1e11),
        ("v5p", 4.59e14, 96e9, 2.8e12),
        ("v6e", 9.2e14, 32e9, 1.6e12),
        ("v7x", 2.3e15, 192e9, 7.4e12),
        ("h100", 9.89e14, 80e9, 3.35e12),
        ("b200", 2.25e15, 192e9, 8e12),
    ],
)
def test_the_book_profile(chip_id: str, bf16: float, hbm: float, bandwidth: float) -> None:
    chip = chip_by_name(chip_id, "book")
    assert (chip.bf16_flops, chip.hbm_bytes, chip.hbm_bandwidth) == (bf16, hbm, bandwidth)


def test_a_profile_is_an_order_of_sources() -> None:
    fact = Fact(
        id="memory.bandwidth",
        value=3.0,
        unit="B/s",
        confidence="high",
        sources=("vendor",),
        alternatives=(
            Alternative(value=1.0, sources=("first",)),
            Alternative(value=2.0, sources=("second",)),
        ),
    )
    assert prefer(fact, ["second", "first"]).value == 2.0
    assert prefer(fact, ["first", "second"]).value == 1.0
    assert prefer(fact, ["vendor", "second"]) == fact
    assert prefer(fact, []) == prefer(fact, ["nobody"]) == fact
    chosen = prefer(fact, ["second"])
    assert [other.value for other in chosen.alternatives] == [3.0, 1.0]
    assert prefer(chosen, ["vendor"]).value == 3.0


def test_unknown_profile() -> None:
    with pytest.raises(
        UnknownName, match="unknown constants 'scroll'; choose from documented, book"
    ):
        chip_by_name("v5p", "scroll")
