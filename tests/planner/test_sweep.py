import json
from dataclasses import replace

import pytest

from muster.errors import UnknownName
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan import Plan
from muster.planner.search import Restrictions, search
from muster.planner.sizes import scaled_batch, scaled_cluster, scaled_sequence
from muster.planner.sweep import (
    POINTS_PAST_FIT,
    WHAT,
    Sweep,
    What,
    parse_what,
    sweep,
    sweep_of,
)
from muster.planner.workload import make_workload
from muster.roofline.workload import Workload
from muster.units import parse_batch
from tests.planner.plans import plan_of


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("llama-3-8b", "v5p:4x4x8", "2M", tokens=10**12)


def swept(plan: Plan, what: What, **fixed: int) -> Sweep:
    return sweep_of(plan, what, Restrictions(fixed=fixed), minimize="time")


@pytest.mark.parametrize("what", WHAT)
def test_the_given_point_is_the_plan_and_points_ascend(plan: Plan, what: What) -> None:
    found = swept(plan, what)
    assert found.given.choice is plan.choice
    assert found.given.mfu == pytest.approx(plan.estimate.mfu)
    assert found.given.bound == plan.estimate.bound
    assert found.given.days == plan.estimate.train_days
    assert found.given.cost_usd == plan.estimate.cost_usd
    values = [point.value for point in found.points]
    assert values == sorted(set(values))
    assert len(values) >= 4


def test_every_point_is_what_a_search_of_its_own_finds(plan: Plan) -> None:
    found = swept(plan, "batch")
    for point in found.points:
        again = search(plan.architecture, plan.cluster, replace(point.workload, remat=None))
        assert point.seconds == again.ranked[0].seconds


def test_batches_are_powers_of_two_of_the_given_one(plan: Plan) -> None:
    batch = plan.workload.batch_tokens
    assert [point.value for point in swept(plan, "batch").points] == [
        batch * 2**k // 16 for k in range(9)
    ]


def test_sequences_keep_the_tokens_of_the_batch(plan: Plan) -> None:
    points = swept(plan, "seq").points
    assert {point.workload.batch_tokens for point in points} == {plan.workload.batch_tokens}
    assert points[-1].value == plan.architecture.context_length


def test_more_chips_are_never_slower_and_are_slices_to_book(plan: Plan) -> None:
    points = swept(plan, "chips").points
    seconds = [point.seconds for point in points if point.seconds is not None]
    assert seconds == sorted(seconds, reverse=True)
    assert all(parse_cluster(point.cluster.name).chips == point.value for point in points)


@pytest.mark.parametrize(
    ("cluster", "factor", "expected"),
    [
        ("v5p:16x16x32", 0.5, "v5p:16x16x16"),
        ("v5p:16x16x32", 2.0, "2xv5p:16x16x32"),
        ("8xv5p:16x16x16", 0.25, "2xv5p:16x16x16"),
        ("8xv5p:16x16x16", 1 / 16, "v5p:8x16x16"),
        ("8xv5p:16x16x16", 2.0, "16xv5p:16x16x16"),
        ("v5e:16x16", 0.5, "v5e:8x16"),
        ("v5e:16x16", 4.0, "4xv5e:16x16"),
        ("h100:64", 2.0, "h100:128"),
        ("cpu:8", 0.125, "cpu:1"),
    ],
)
def test_slices_next_in_size(cluster: str, factor: float, expected: str) -> None:
    found = scaled_cluster(parse_cluster(cluster), factor)
    assert found is not None
    assert found.name == expected


def test_nothing_is_smaller_than_a_chip() -> None:
    assert scaled_cluster(parse_cluster("h100:1"), 0.25) is None
    assert scaled_cluster(parse_cluster("v5p:1x1x1"), 0.5) is None


def test_chips_grow_until_a_model_fits() -> None:
    plan = plan_of("llama-3-70b", "v5p:2x2x1", "4M")
    assert not plan.fits
    points = swept(plan, "chips").points
    fits = [point.choice is not None for point in points]
    assert fits == sorted(fits)
    assert sum(fits) == POINTS_PAST_FIT
    assert points[0].mfu is None
    assert "GB a chip of 103 GB" in str(points[1].why_not)


def test_fixed_axes_hold_at_every_point(plan: Plan) -> None:
    for point in swept(plan, "batch", tensor=4).points:
        if not point.given:
            assert point.choice is None or point.choice.layout.tensor == 4


def test_a_batch_splits_over_the_slices_at_every_point() -> None:
    plan = plan_of("llama-3-8b", "3xv5p:4x4x4", "96seq")
    for point in swept(plan, "batch").points:
        assert point.workload.batch_sequences % 3 == 0


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(
    ("model", "hardware", "batch", "length"),
    [
        ("llama-3-8b", "h100:56", "1000seq", 4095),
        ("mixtral-8x7b", "h100:64", "256seq", 4096),
        ("llama-3-70b", "v5p:4x4x12", "1000seq", 3000),
    ],
)
def test_every_point_is_the_plan_made_there(
    what: What, model: str, hardware: str, batch: str, length: int
) -> None:
    architecture = find_model(model)
    workload = make_workload(architecture, parse_batch(batch), sequence_length=length)
    for point in sweep(architecture, parse_cluster(hardware), workload, what).points:
        if point.given:
            continue
        where = parse_cluster(hardware) if what != "chips" else parse_cluster(point.cluster.name)
        plan = make_plan(architecture, where, replace(point.workload, warnings=()))
        assert (plan.fits, plan.choice.layout) == (
            point.choice is not None,
            point.choice.layout if point.choice else plan.choice.layout,
        )
        assert point.seconds in {None, plan.choice.seconds}


@pytest.mark.parametrize("hardware", ["h100:8", "h100:56", "h200:48", "h800:400", "gb200:36"])
def test_chips_are_sizes_that_can_be_asked_for(hardware: str) -> None:
    cluster = parse_cluster(hardware)
    for factor in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 8):
        near = scaled_cluster(cluster, factor)
        if near is not None:
            assert parse_cluster(near.name).chips == near.chips
            assert 0.6 <= near.chips / (cluster.chips * factor) <= 1.5


@pytest.mark.parametrize(
    ("hardware", "batch", "length", "factor", "expected"),
    [
        # 960 sequences of 4,095 are 3,842 = 2 * 17 * 113 of 1,023; 3,840 divide as the batch does.
        ("h100:1024", 960, 4095, 1 / 4, (1023, 3840)),
        ("h100:1024", 960, 4096, 2, (8192, 480)),
        ("3xv5p:4x4x4", 96, 4096, 1 / 2, (2048, 192)),
        ("h100:64", 1000, 4096, 16, (65536, 64)),  # not 62.5
        ("h100:64", 3, 4096, 8, None),
    ],
)
def test_sequences_of_another_length_divide_as_well(
    hardware: str, batch: int, length: int, factor: float, expected: tuple[int, int] | None
) -> None:
    workload = Workload(sequence_length=length, batch_sequences=batch)
    scaled = scaled_sequence(workload, factor, parse_cluster(hardware), longest=1 << 20)
    found = (scaled.sequence_length, scaled.batch_sequences) if scaled else None
    assert found == expected


def test_batches_that_cannot_be_halved_stay_ones_that_divide() -> None:
    workload = Workload(sequence_length=4096, batch_sequences=1000)
    halved = [scaled_batch(workload, 1 / 2**k, parse_cluster("h100:64")) for k in range(1, 6)]
    assert [each.batch_sequences for each in halved if each] == [500, 250, 125, 64, 32]


def test_json_has_no_nan_and_names_what_does_not_fit() -> None:
    plan = plan_of("llama-3-70b", "v5p:2x2x1", "4M", tokens=10**12)
    answer = json.loads(json.dumps(swept(plan, "chips").to_json(), allow_nan=False))
    assert answer["sweep"] == "chips"
    first, last = answer["points"][0], answer["points"][-1]
    assert (first["fits"], first["step_seconds"], first["layout"]) == (False, None, None)
    assert "a chip of" in first["why_not"]
    assert last["fits"]
    assert last["layout"]["chips_used"] == last["chips"]


def test_what_to_sweep_is_named() -> None:
    assert [parse_what(what) for what in WHAT] == ["batch", "chips", "seq"]
    with pytest.raises(UnknownName, match="chips"):
        parse_what("chip")
