"""What a planner must be told before spending chip-hours."""

from dataclasses import replace

import pytest

from muster.hardware import parse_cluster
from muster.planner.advice import advice, divides_evenly, factorization
from muster.planner.host import host_share
from muster.planner.search import Restrictions
from muster.roofline.remat import Remat
from muster.units import GIB
from tests.planner.plans import plan_of

OFFLOADED = Restrictions(remat=Remat.OFFLOAD)


def test_a_plan_that_does_not_fit_names_what_would() -> None:
    plan = plan_of("llama-3-70b", "v5p:2x2x1", "1M")
    (line,) = (each for each in plan.warnings if "does not fit" in each)
    assert line.startswith(f"does not fit: {plan.memory.total / 1e9:.0f} GB a chip of 103 GB")
    assert "no sharding over these 4 chips can hold them" in line
    assert "it fits on v5p:2x2x4 (16 chips)" in line
    assert plan_of("llama-3-70b", "v5p:2x2x4", "1M").fits
    assert not plan_of("llama-3-70b", "v5p:2x2x2", "1M").fits


def test_what_is_held_is_named_where_letting_go_would_fit() -> None:
    restrictions = Restrictions(fixed={"fsdp": 256, "microbatches": 1}, remat=Remat.NONE)
    plan = plan_of("llama-1-7b", "v4-512", "1024seq", restrictions=restrictions)
    (line,) = (each for each in plan.warnings if "does not fit" in each)
    assert "it fits without what --fix and --remat hold" in line


def test_gpus_that_fit_are_doublings() -> None:
    plan = plan_of("llama-3-70b", "h100:8", "1M")
    (line,) = (each for each in plan.warnings if "does not fit" in each)
    assert "on h100:" in line
    assert "(16 chips)" in line or "(32 chips)" in line


def test_idle_chips_are_counted_and_the_smaller_slice_named() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x8", "3seq", seq=128)
    (line,) = (each for each in plan.warnings if "would idle" in each)
    idle = plan.cluster.chips - plan.layout.chips_used
    assert f"{idle} of 128 chips would idle" in line
    assert f"book {plan.choice.cluster.name} ({plan.layout.chips_used} chips)" in line


def test_idle_chips_of_slices() -> None:
    plan = plan_of("llama-3-70b", "4xv5p:16x20x28", "4M")
    (line,) = (each for each in plan.warnings if "would idle" in each)
    assert "256 sequences do not divide over the 8,960 = 2^8*5*7 chips of each slice" in line


@pytest.mark.parametrize("restrictions", [None, Restrictions(max_chips=32)])
def test_chips_that_were_not_to_be_used_are_not_idle(restrictions: Restrictions | None) -> None:
    hardware = "v5p:4x4x4" if restrictions else "v5p:2x4x4"
    plan = plan_of("llama-3-8b", hardware, "1024seq", restrictions=restrictions)
    assert plan.layout.chips_used == 32
    assert not any("idle" in line for line in plan.warnings)


def test_a_chip_that_is_nearly_full_is_said_to_be() -> None:
    plan = plan_of("llama-3-8b", "v5p:2x2x1", "512seq", restrictions=Restrictions(remat=Remat.FULL))
    share = plan.memory.total / plan.memory.usable
    said = any("buffers and fragmentation" in line for line in plan.warnings)
    assert said is (share > 0.92)


def test_shards_of_less_than_a_tile_are_for_those_who_ask() -> None:
    """Gemma-3 12B ran so on 256 v6e: 15 of D's 3,840 rows a chip."""
    free = plan_of("gemma-3-12b-text", "v6e-256", "256seq", seq=32768)
    assert free.layout.weight_shards <= 240
    asked = Restrictions(fixed={"fsdp": 256})
    plan = plan_of("gemma-3-12b-text", "v6e-256", "256seq", seq=32768, restrictions=asked)
    assert plan.layout.fsdp == plan.layout.weight_shards == 256
    (line,) = (each for each in plan.warnings if "less than a tile" in each)
    assert line.startswith("256-way sharding leaves 15 of D's 3840 rows a chip")
    assert not any("less than a tile" in each for each in free.warnings)


def test_what_waits_on_the_host_is_bounded_where_its_memory_is_not_known() -> None:
    plan = plan_of("llama-3-70b", "v5p:4x4x4", "1024seq", restrictions=OFFLOADED)
    share = 256 * GIB / 4
    assert 0 < plan.memory.host <= share
    (line,) = (each for each in plan.warnings if "host's memory" in each)
    assert "which is not known for TPU v5p: 275 GB a host are assumed" in line


def test_a_host_that_is_nearly_full_is_said_to_be() -> None:
    cluster = parse_cluster("v5e:16x16")
    share = host_share(cluster.chip)
    assert share.known
    said = {}
    for taken in (0.85, 0.95):
        plan = plan_of("llama-3-70b", "v5e:16x16", "256seq", restrictions=OFFLOADED)
        memory = replace(plan.memory, host=taken * share.bytes)
        choice = replace(plan.choice, memory=memory)
        lines = advice(plan.architecture, cluster, plan.workload, choice, OFFLOADED)
        said[taken] = [each for each in lines if "host's memory" in each]
    assert said[0.85] == []
    assert len(said[0.95]) == 1
    assert "(95%)" in said[0.95][0]


@pytest.mark.parametrize(
    ("sequences", "chips", "evenly"),
    [(1024, 8960, False), (1024, 4096, True), (12, 24, True), (12, 36, False), (1, 8, True)],
)
def test_what_divides_evenly(sequences: int, chips: int, evenly: bool) -> None:
    assert divides_evenly(sequences, chips) is evenly


@pytest.mark.parametrize(
    ("number", "factors"), [(1, "1"), (7, "7"), (8960, "2^8*5*7"), (36, "2^2*3^2")]
)
def test_factorization(number: int, factors: str) -> None:
    assert factorization(number) == factors
