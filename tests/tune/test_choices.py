"""What can be varied: flags from the data, step choices, placements."""

from dataclasses import replace

import pytest

from muster.hardware import parse_cluster
from muster.hardware.catalogue import all_chips
from muster.planner.build import make_plan
from muster.planner.choice import Restrictions
from muster.planner.plan_file import PlannedRun, planned_run
from muster.planner.step_choices import DEFAULT_STEP, StepChoices
from muster.proof.others import plan_of
from muster.roofline.remat import Remat
from muster.tune.choices import knobs, placements_of, with_changes, with_step
from muster.tune.flags import flags_for, options
from muster.tune.layouts import MEMORY_OFF, WORTH_COMPILING, candidates, predicted_seconds
from tests.tune.fakes import planned


def test_every_option_says_what_it_does_and_where_it_is_from() -> None:
    tpus = {chip.id for chip in all_chips() if chip.kind == "tpu"}
    assert options()
    for option in options():
        assert option.values
        assert len(set(option.values)) == len(option.values)
        assert option.what
        assert option.source
        assert set(option.chips) <= tpus
        assert option.where in {"always", "several slices", "host memory"}
        assert all(isinstance(each, str) for each in (*option.values, *option.needs.values()))


def test_flags_suit_the_plan() -> None:
    names = {flag.name for flag in flags_for(planned())}
    assert "xla_tpu_scoped_vmem_limit_kib" in names
    assert not names & {option.name for option in options() if option.where != "always"}
    held = planned().compiler_options
    assert all(held.get(flag.name) != flag.value for flag in flags_for(planned()))
    for flag in flags_for(planned()):
        assert flag.on(planned()).compiler_options == {
            **held, **flag.needs, flag.name: flag.value
        }  # fmt: skip


def test_step_choices_are_written_and_read_back() -> None:
    for knob in knobs(planned()):
        changed = knob.on(planned())
        again = planned_run(changed.document, where="x")
        assert again.step == changed.step != DEFAULT_STEP
        assert with_step(changed, DEFAULT_STEP).document == planned().document


def test_changes_add_up() -> None:
    given = list(knobs(planned()))
    unrolled = next(each for each in given if each.name == "layers_unrolled")
    chunk = next(each for each in given if each.name == "loss_chunk_tokens")
    both = with_changes(planned(), (unrolled, chunk)).step
    assert (both.layers_unrolled, both.loss_chunk_tokens) == (2, 1024)


def on_cubes(**ways: int) -> PlannedRun:
    plan = make_plan(
        planned().architecture,
        parse_cluster("v5p:4x4x4"),
        planned().workload,
        restrictions=Restrictions(fixed=ways),
    )
    return planned_run(plan.to_json(), where="x")


def test_placements_are_written_and_read_back() -> None:
    plan = on_cubes(tensor=4, fsdp=16)
    found = list(placements_of(plan))
    assert found
    for placement in found:
        changed = placement.on(plan)
        assert planned_run(changed.document, where="x").torus == changed.torus is not None
    assert not list(placements_of(on_cubes(fsdp=64)))


def test_candidates_are_the_planners_best_first() -> None:
    found = candidates(planned())
    seconds = [each.step_seconds for each in found]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= WORTH_COMPILING * seconds[0]
    usable = planned().cluster.chip.hbm_bytes
    assert all(each.memory_bytes <= MEMORY_OFF * usable for each in found)
    assert all(each.bound_seconds < each.step_seconds for each in found)
    assert len({(each.layout, each.remat) for each in found}) == len(found)
    assert planned().layout in {each.layout for each in found}


def test_a_candidate_becomes_a_plan_with_the_given_options_and_step() -> None:
    given = with_step(planned(), StepChoices(layers_unrolled=2))
    candidate = candidates(given)[1]
    plan = candidate.plan(given)
    assert plan is not None
    assert (plan.layout, plan.remat) == (candidate.layout, candidate.remat)
    assert plan.step == given.step
    assert plan.step_seconds == pytest.approx(candidate.step_seconds)
    assert predicted_seconds(plan) == pytest.approx(candidate.step_seconds)
    nowhere = replace(candidate, layout=replace(candidate.layout, fsdp=7))
    assert nowhere.plan(given) is None


def test_a_plan_of_another_policy_keeps_the_run() -> None:
    other = plan_of(planned(), {"fsdp": 16}, Remat.FULL, planned().cluster)
    assert other.workload == replace(planned().workload, remat="full")
