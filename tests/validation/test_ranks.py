"""Published layouts against the search."""

from dataclasses import replace

import pytest

from muster.planner.search import AXES
from muster.validation.against_search import (
    families,
    half_precision_groups,
    rank_layout,
    rank_layouts,
    sample,
)
from muster.validation.groups import Group, group_setups
from muster.validation.ranks import LARGE_GAP, NEAR, Rank, rank_json, unranked_json
from muster.validation.runs import Run
from muster.validation.setup import Setup, setup_of


@pytest.fixture(scope="module")
def groups(runs: dict[str, Run]) -> tuple[Group, ...]:
    return half_precision_groups(runs.values())


@pytest.fixture(scope="module")
def ranks(groups: tuple[Group, ...]) -> tuple[Rank, ...]:
    found, unranked = rank_layouts(sample(groups, 8), groups)
    assert unranked == ()
    return found


def group_of(runs: dict[str, Run], key: str) -> Group:
    setup = setup_of(runs[key])
    assert isinstance(setup, Setup)
    return group_setups([setup])[0]


def test_the_sample_does_not_depend_on_order(groups: tuple[Group, ...]) -> None:
    chosen = [group.id for group in sample(groups, 20)]
    assert chosen == [group.id for group in sample(reversed(groups), 20)]
    assert chosen[:10] == [group.id for group in sample(groups, 10)]
    assert len(sample(groups, None)) == len(groups)


def test_the_sample_takes_the_fastest_of_each_family(groups: tuple[Group, ...]) -> None:
    parts = families(groups)
    assert sum(map(len, parts.values())) == len(groups)
    fastest = {part[0].id for part in parts.values()}
    assert {group.id for group in sample(groups, 10_000)} == fastest
    for part in parts.values():
        assert part[0].measured_seconds == min(group.measured_seconds for group in part)


def test_the_best_is_no_worse_than_the_mesh(ranks: tuple[Rank, ...]) -> None:
    for rank in ranks:
        assert rank.best is not None
        if rank.tuned is not None:
            assert rank.best.seconds <= rank.tuned.seconds
            assert rank.mesh_gain is not None
            assert rank.mesh_gain >= 0
        if rank.rank is not None:
            assert 1 <= rank.rank <= rank.listed


def test_gaps_have_reasons(ranks: tuple[Rank, ...]) -> None:
    for rank in ranks:
        assert rank.gain is not None
        assert rank.odd == (rank.gain > LARGE_GAP or rank.gain < -NEAR)
        assert bool(rank.reason) == rank.odd


def test_reasons_of_gaps_explain_most_of_them(runs: dict[str, Run]) -> None:
    """Sequence ways alone, which its source does not use, gain three points of 36."""
    every = half_precision_groups(runs.values())
    group = next(each for each in every if any(s.id == "vtrain-091" for s in each.setups))
    (rank,), _ = rank_layouts([group], every)
    assert rank.gain is not None
    assert rank.familiar_gain is not None
    if rank.gain - rank.familiar_gain < rank.gain / 2:
        assert "no run of its source uses sequence ways" not in rank.reason
    assert rank.reason


def test_published_layouts_are_near_the_search(ranks: tuple[Rank, ...]) -> None:
    gains = sorted(rank.gain or 0 for rank in ranks)
    assert gains[len(gains) // 2] < 2 * LARGE_GAP
    near = [rank for rank in ranks if rank.mesh_gain is not None and rank.mesh_gain <= LARGE_GAP]
    assert len(near) >= len(ranks) // 2


def test_the_mesh_that_the_search_takes_too(runs: dict[str, Run]) -> None:
    rank = rank_layout(group_of(runs, "dgxc-benchmarking-220"), AXES)
    assert rank.rank == 1
    assert rank.mesh_gain == pytest.approx(0)
    assert rank.rank_words == f"1/{rank.listed}"


def test_axes_that_its_source_does_not_use(runs: dict[str, Run]) -> None:
    group = group_of(runs, "llm-foundry-024")
    free, held = rank_layout(group, AXES), rank_layout(group, {"fsdp"})
    assert free.familiar == free.best == held.best
    assert held.best is not None
    assert held.familiar is not None
    assert held.best.layout.tensor * held.best.layout.stage > 1
    assert held.familiar.layout.tensor == held.familiar.layout.stage == 1
    assert held.familiar.seconds >= held.best.seconds


def test_software_is_the_runs_own(runs: dict[str, Run]) -> None:
    """ZeRO-3 of 2021 moves a parameter at a time: the search leaves it for a pipeline."""
    rank = rank_layout(group_of(runs, "megatron-lm-023"), AXES)
    assert rank.best is not None
    assert rank.best.layout.stage > 1
    assert rank.rank is None
    assert rank.rank_words.startswith(">")


def test_a_batch_that_the_search_refuses_is_said(runs: dict[str, Run]) -> None:
    group = group_of(runs, "maxtext-003")
    setup = group.setups[0]
    odd = replace(setup, workload=replace(setup.workload, batch_sequences=7))
    ranks, unranked = rank_layouts([Group(id="odd", setups=(odd,))], [group])
    assert ranks == ()
    assert "do not split over 4 slices" in unranked[0].reason
    assert unranked_json(unranked[0])["skipped"] == unranked[0].reason


def test_progress_and_json(runs: dict[str, Run]) -> None:
    seen: list[tuple[int, int, Group | None]] = []
    group = group_of(runs, "simumax-018")
    ranks, _ = rank_layouts(
        [group], [group], lambda done, total, each: seen.append((done, total, each))
    )
    assert seen == [(0, 1, group), (1, 1, None)]
    row = rank_json(ranks[0])
    assert row["ids"] == ["simumax-018"]
    assert {"published", "tuned", "best", "gain", "rank", "listed", "reason", "skipped"} <= set(row)
