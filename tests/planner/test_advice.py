"""What a planner must be told before spending chip-hours."""

import re
from dataclasses import replace

import pytest

from muster.hardware import parse_cluster
from muster.planner.advice import advice, factorization
from muster.planner.booking import divides_evenly
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
    assert "it fits on v5p:2x2x4 (16 chips): " in line
    assert str(plan.nearest[0]) in line
    assert plan_of("llama-3-70b", "v5p:2x2x4", "1M").fits
    assert not plan_of("llama-3-70b", "v5p:2x2x2", "1M").fits


def test_what_is_held_is_named_where_letting_go_would_fit() -> None:
    restrictions = Restrictions(fixed={"fsdp": 256, "microbatches": 1}, remat=Remat.NONE)
    plan = plan_of("llama-1-7b", "v4-512", "1024seq", restrictions=restrictions)
    (line,) = (each for each in plan.warnings if "does not fit" in each)
    assert "it fits without --fix microbatches=1: " in line


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


def test_what_else_the_batch_fills_is_filled_by_the_best_plan_there() -> None:
    plan = plan_of("llama-3-8b", "h100:96", "1000seq")
    (line,) = (each for each in plan.warnings if "would idle" in each)
    named = re.findall(
        r"(h100:\d+) \(([\d,]+) chips, a step takes", line.partition("also fills")[2]
    )
    assert named
    for name, chips in named:
        assert str(plan_of("llama-3-8b", name, "1000seq").layout.chips_used) == chips


def test_nothing_is_to_be_booked_for_what_does_not_fit() -> None:
    plan = plan_of(
        "llama-3-8b",
        "h100:64",
        "4M",
        restrictions=Restrictions(
            fixed={"data": 1, "fsdp": 1, "tensor": 1, "stage": 1, "sequence": 1}
        ),
    )
    assert not plan.fits
    assert plan.layout.chips_used == 1
    assert not any("book" in line or "idle" in line for line in plan.warnings)


@pytest.mark.parametrize("hardware", ["v5p:16x20x28", "v5p:16x16x32"])
def test_slices_that_cannot_be_scheduled_are_named_as_several_that_can(hardware: str) -> None:
    """A v5p slice ends at 6,144 chips, 8,192 are two of 4,096."""
    plan = plan_of("llama-3-70b", hardware, "4M")
    assert plan.choice.cluster.name == "v5p:16x16x32"
    assert plan.bookable is not None
    assert plan.bookable.cluster.name == "2xv5p:16x16x16"
    assert plan.bookable.layout.slice == 2
    (line,) = (each for each in plan.warnings if "book " in each)
    assert "v5p:16x16x32, which this plan fills, cannot be scheduled as one slice" in line
    assert "book 2xv5p:16x16x16 (8,192 chips)" in line
    assert plan.to_json()["bookable"]
    small = plan_of("llama-3-70b", "v5p:16x16x16", "4M")
    assert small.bookable is None


@pytest.mark.parametrize("restrictions", [None, Restrictions(max_chips=32)])
def test_chips_that_were_not_to_be_used_are_not_idle(restrictions: Restrictions | None) -> None:
    hardware = "v5p:4x4x4" if restrictions else "v5p:2x4x4"
    plan = plan_of("llama-3-8b", hardware, "1024seq", restrictions=restrictions)
    assert plan.layout.chips_used == 32
    assert not any("idle" in line for line in plan.warnings)


def test_a_chip_that_is_nearly_full_is_said_to_be() -> None:
    plan = plan_of("llama-3-8b", "v5p:2x2x1", "512seq", restrictions=Restrictions(remat=Remat.FULL))
    share = plan.memory.total / plan.memory.usable
    said = any("too low: it may not fit" in line for line in plan.warnings)
    assert said is (share > 0.86)


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
    plan = plan_of("llama-3-8b", "v4:4x4x4", "1024seq", restrictions=OFFLOADED)
    share = 256 * GIB / 4
    assert 0 < plan.memory.host <= share
    (line,) = (each for each in plan.warnings if "activations take" in each)
    assert "whose memory is not known for TPU v4: 275 GB are assumed" in line


@pytest.mark.parametrize(("chip", "gib"), [("v5p:4x4x4", 448), ("v7x:4x4x4", 960)])
def test_what_waits_on_the_host_is_bounded_by_its_memory(chip: str, gib: int) -> None:
    """32,768 tokens of 70B would be over a terabyte on a host of four chips."""
    share = host_share(parse_cluster(chip).chip)
    assert (share.bytes, share.known) == (gib * GIB / 4, True)
    plan = plan_of("qwen3-32b", chip, "128seq", seq=32768, restrictions=OFFLOADED)
    assert 0 < plan.memory.host <= share.bytes


def test_a_host_that_is_nearly_full_is_said_to_be() -> None:
    cluster = parse_cluster("v5e:16x16")
    share = host_share(cluster.chip)
    assert share.known
    said = {}
    for taken in (0.75, 0.95):
        plan = plan_of("llama-3-70b", "v5e:16x16", "256seq", restrictions=OFFLOADED)
        memory = replace(plan.memory, host=taken * share.bytes)
        choice = replace(plan.choice, memory=memory)
        lines = advice(plan.architecture, cluster, plan.workload, choice, OFFLOADED)
        said[taken] = [each for each in lines if "activations take" in each]
    assert said[0.75] == []
    assert len(said[0.95]) == 1
    assert "of a host of 8 chips" in said[0.95][0]
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


def test_what_replicas_hold_alike_could_be_split() -> None:
    """64 replicas do not fit, and their sharding would: no word that none can hold the state."""
    restrictions = Restrictions(fixed={"data": 64})
    plan = plan_of("llama-3-70b", "h100:64", "256seq", restrictions=restrictions)
    assert not plan.fits
    assert not any("no sharding" in line for line in plan.warnings)
    (line,) = (
        line for line in plan_of("llama-3-70b", "v5p:2x2x1", "4M").warnings if "no sharding" in line
    )
    assert "over these 4 chips can hold them" in line


def test_no_slice_is_to_be_booked_that_cannot_be() -> None:
    """With what is held the plan fills 8,192 chips, and 6,144 are the most that are scheduled."""
    held = Restrictions(fixed={"fsdp": 1024, "sequence": 2, "tensor": 4})
    plan = plan_of("llama-3-70b", "v5p:16x20x28", "4M", restrictions=held)
    assert plan.bookable is None
    (line,) = (line for line in plan.warnings if "would idle" in line)
    assert "book" not in line.partition(". The batch")[0]
    assert "v5p:16x16x32, which this plan fills, cannot be scheduled as one slice" in line
