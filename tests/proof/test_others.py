"""The next best layouts of a plan that does not pass."""

from dataclasses import replace
from functools import cache

import pytest

from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof import others as next_best
from muster.proof.compiler import Compilation, Memory
from muster.proof.memory import predicted_memory
from muster.proof.others import other_plans, thriftier_plans, try_others
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from tests.proof.make_programs import LLAMA, plan_of

FITS = Memory(
    arguments=10**9,
    outputs=0,
    aliased=0,
    temporaries=10**9,
    code=0,
    peak=0,
    host_temporaries=0,
)


@cache
def planned() -> PlannedRun:
    plan = make_plan(
        architecture_from_config(LLAMA, name="small"),
        parse_cluster("v5p:2x2x4"),
        Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
    )
    return planned_run(plan.to_json(), where="x")


def test_others_are_the_plans_alternatives_as_whole_plans() -> None:
    listed = planned().document["alternatives"]
    others = list(other_plans(planned()))
    assert isinstance(listed, list)
    assert 0 < len(others) <= len(listed)
    assert [each.step_seconds for each in others] == [
        entry["step_seconds"] for entry in listed[: len(others)]
    ]
    assert planned().layout not in [each.layout for each in others]
    for each in others:
        assert each.layout.chips_used <= 16
        assert each.workload.batch_sequences == 64
        assert each.document["estimate"]["memory_per_chip"]["total"] > 0  # type: ignore[index]


def test_a_plan_by_hand_lists_none_so_the_planner_is_asked() -> None:
    plan = plan_of("llama-v5p-hybrid")
    assert "alternatives" not in plan.document
    others = list(other_plans(plan))
    assert others
    assert all(each.layout != plan.layout or each.remat != plan.remat for each in others)


def test_entries_that_are_no_layouts_are_passed_over() -> None:
    good = planned().document["alternatives"][0]  # type: ignore[index]
    endless = dict(good) | {"step_seconds": float("inf")}
    odd = dict(good) | {"layout": {"fsdp": float("nan")}}
    huge = dict(good) | {"layout": {"fsdp": float("inf")}}
    bad = [
        None,
        {},
        endless,
        odd,
        huge,
        {"layout": {"fsdp": 7}, "cluster": "v5p:2x2x4", "remat": "none"},
    ]
    document = dict(planned().document) | {"alternatives": [*bad, good]}
    others = list(other_plans(replace(planned(), document=document)))
    assert [each.step_seconds for each in others] == [good["step_seconds"]]


def test_where_memory_is_short_more_is_computed_again_first() -> None:
    others = list(thriftier_plans(planned()))
    assert planned().remat is Remat.NONE
    first = others[0]
    assert (first.layout, first.remat) == (planned().layout, Remat.MINIMAL)
    needed = [predicted_memory(each)["total"] for each in others]
    assert max(needed) < predicted_memory(planned())["total"]


def test_it_ends_with_the_first_that_passes() -> None:
    asked: list[PlannedRun] = []

    def compile_one(run: PlannedRun) -> Compilation:
        asked.append(run)
        if len(asked) == 1:
            return Compilation(status="died", message="SIGFPE", ended_by="SIGFPE")
        return Compilation(status="compiled", memory=FITS)

    tried = list(try_others(planned(), compile_one, most=5))
    assert [each.passes for each in tried] == [False, True]
    assert [each.planned for each in tried] == asked
    assert tried[0].to_json()["message"] == "SIGFPE"
    assert tried[1].to_json()["total"] == FITS.total


def test_it_ends_after_as_many_as_were_asked_for() -> None:
    def too_large(run: PlannedRun) -> Compilation:
        del run
        return Compilation(status="too_large", message="x", needed=9, usable=5)

    tried = list(try_others(planned(), too_large, most=2))
    assert [(each.passes, each.needed) for each in tried] == [(False, 9)] * 2
    assert not list(try_others(planned(), too_large, most=0))


def test_none_is_made_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> Compilation:
        raise AssertionError((given, more))

    monkeypatch.setattr(next_best, "make_plan", refuse)
    assert not list(try_others(planned(), refuse, most=0))
