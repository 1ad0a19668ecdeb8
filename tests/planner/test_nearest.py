"""The nearest yes: every change that is named does fit, and something always is."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from muster.hardware import Cluster, parse_cluster
from muster.models.architecture import Architecture
from muster.planner.build import make_plan
from muster.planner.plan import Plan
from muster.planner.search import Restrictions, search
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from tests.planner.plans import plan_of
from tests.planner.small import clusters, models, splits, with_chip, workloads


def held(most: int | None = None, remat: Remat | None = None, **fixed: int) -> Restrictions:
    return Restrictions(fixed=fixed, remat=remat, max_chips=most)


@pytest.mark.parametrize(
    ("model", "hardware", "batch", "length", "restrictions", "first"),
    [
        ("llama-3-8b", "h100:64", "1024seq", 4096, held(most=1), "with --max-chips 2"),
        (
            "llama-1-7b",
            "v4-512",
            "1024seq",
            4096,
            held(remat=Remat.NONE, fsdp=256, microbatches=1),
            "without --fix microbatches=1",
        ),
        ("llama-3-70b", "h100:64", "64seq", 4096, held(data=64), "without --fix data=64"),
        # Four sequences keep 64 of 96 GPUs without work.
        ("qwen3.5-397b-a17b", "a100:96", "4seq", 8192, held(), "with --batch 16seq"),
        ("llama-3-70b", "v5p:2x2x1", "1M", 4096, held(), "on v5p:2x2x4 (16 chips)"),
        ("llama-3-70b", "h100:8", "1M", 4096, held(), "with --optimizer-dtype bf16"),
        # No slice of v5e holds 671 B parameters: other chips.
        ("deepseek-v3", "v5e:16x16", "256seq", 4096, held(), "on v7x:"),
    ],
)
def test_the_nearest_comes_first(
    model: str, hardware: str, batch: str, length: int, restrictions: Restrictions, first: str
) -> None:
    plan = plan_of(model, hardware, batch, seq=length, restrictions=restrictions)
    assert not plan.fits
    assert plan.nearest[0].text.startswith(first)
    (line,) = (each for each in plan.warnings if each.startswith("does not fit"))
    assert f"; it fits {plan.nearest[0].text}: " in line
    for change in plan.nearest:
        assert change.choice.memory.fits
        assert change.choice.memory.total <= change.choice.memory.usable


def test_shorter_sequences_are_named_with_their_batch() -> None:
    """One sequence of a million tokens on eight chips: its activations do not fit."""
    plan = plan_of("llama-3-8b", "h100:8", "8seq", seq=1 << 20, restrictions=held(data=8))
    assert not plan.fits
    (change,) = (each for each in plan.nearest if each.kinds == ("sequence",))
    assert change.workload.batch_tokens == plan.workload.batch_tokens
    words = change.text.split()
    length, batch = int(words[2]), words[4]
    assert plan_of("llama-3-8b", "h100:8", batch, seq=length, restrictions=held(data=8)).fits


@given(architecture=models(), cluster=clusters(), workload=workloads, data=st.data())
@settings(max_examples=25, deadline=None)
def test_something_is_always_named_and_fits(
    architecture: Architecture, cluster: Cluster, workload: Workload, data: st.DataObject
) -> None:
    assume(splits(cluster, workload))
    tiny = replace(cluster.chip, hbm_bytes=data.draw(st.sampled_from([10**6, 10**7, 10**8])))
    most = data.draw(st.sampled_from([None, None, 1]))
    where, few = with_chip(cluster, tiny), Restrictions(max_chips=most)
    assume(search(architecture, where, workload, few).closest)
    plan = make_plan(architecture, where, workload, restrictions=few)
    assume(not plan.fits)
    if cluster.chip.kind != "cpu":
        assert plan.nearest
    assert all(each.choice.memory.fits for each in plan.nearest)


def test_json_has_every_change_with_its_numbers() -> None:
    plan = plan_of("llama-3-8b", "h100:64", "1024seq", tokens=10**12, restrictions=held(most=1))
    document = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    first = document["nearest"][0]
    assert first["changes"] == ["chips"]
    assert first["layout"]["chips_used"] == 2
    assert first["memory_per_chip"]["total"] <= first["memory_per_chip"]["usable"]
    assert first["cost_usd"] > 0
    assert first["chip_hours"] == pytest.approx(
        2 * first["step_seconds"] * (plan.workload.steps or 0) / 3600
    )


def fitting(**options: object) -> Plan:
    return plan_of("llama-3-8b", "h100:64", "4M", mfu=0.4, tokens=10**12, **options)  # type: ignore[arg-type]


def test_an_assumed_mfu_is_of_the_chips_that_were_asked_for() -> None:
    """All of them, or what --max-chips or --fix leave of them."""
    whole, few = fitting(), fitting(restrictions=held(most=8))
    fixed = fitting(restrictions=held(fsdp=1, data=8, tensor=1, sequence=1, stage=1))
    assert whole.estimate.chips == 64
    assert few.estimate.chips == few.layout.chips_used == 8
    assert fixed.estimate.chips == fixed.layout.chips_used == 8
    assert few.estimate.step_seconds == pytest.approx(8 * whole.estimate.step_seconds)
    assert few.estimate.chip_hours == pytest.approx(whole.estimate.chip_hours)
    cheap = make_plan(
        whole.architecture,
        parse_cluster("h100:64"),
        replace(whole.workload, remat=None),
        mfu=0.4,
        minimize="chips",
    )
    assert cheap.estimate.chips == cheap.layout.chips_used < 64
