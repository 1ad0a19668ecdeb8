"""The rungs of the search, with a compiler that answers from a formula."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.planner.plan_file import PlannedRun
from muster.planner.step_choices import StepChoices
from muster.tune.choices import Change, Flag, Knob
from muster.tune.layouts import Candidate, candidates
from muster.tune.search import LAYOUT_SHARE, Trial, tune
from muster.tune.trial import Answer
from tests.tune.fakes import Compiler, answer, by_flags, key, planned

FLAGS: tuple[Change, ...] = (
    Flag(name="xla_a", value="true"),
    Flag(name="xla_a", value="false"),
    Flag(name="xla_b", value="1"),
    Flag(name="xla_c", value="1"),
    Knob(name="layers_unrolled", step=StepChoices(layers_unrolled=2)),
)
GAINS = {"xla_a=true": 0.02, "xla_a=false": 0.03, "xla_b=1": -0.05, "layers_unrolled=2": 0.04}


def rungs(trials: list[Trial]) -> list[str]:
    return [each.rung for each in trials]


def test_changes_that_gain_are_combined_and_others_not() -> None:
    compiler = Compiler(by_flags(GAINS))
    done = tune(planned(), compiler.jobs(), listed=(), changes=FLAGS)
    assert rungs(done.trials) == ["plan", *["alone"] * 5, "together"]
    assert done.best is not None
    assert sorted(map(str, done.best.changes)) == ["layers unrolled: 2", "xla_a=false"]
    assert done.best.seconds == pytest.approx(planned().step_seconds * 0.96 * 0.97)
    assert done.best.planned.step.layers_unrolled == 2
    assert done.best.planned.compiler_options["xla_a"] == "false"


def test_what_gained_alone_and_not_together_is_left_out() -> None:
    def step(plan: PlannedRun) -> float:
        both = {"xla_a", "xla_c"} <= set(plan.compiler_options)
        one = {"xla_a", "xla_c"} & set(plan.compiler_options)
        return plan.step_seconds * (1.1 if both else 0.9 if one else 1.0)

    changes = (FLAGS[0], FLAGS[3])
    done = tune(planned(), Compiler(step).jobs(), listed=(), changes=changes)
    assert [each.gains for each in done.trials if each.rung == "together"] == [False]
    assert done.best is not None
    assert len(done.best.changes) == 1


def test_the_best_layout_wins_though_the_planner_put_it_behind() -> None:
    listed = candidates(planned())
    favourite = next(
        each
        for each in listed
        if each.step_seconds > 1.02 * listed[0].step_seconds
        and each.step_seconds < 1.06 * listed[0].step_seconds
    )

    def step(plan: PlannedRun) -> float:
        is_favourite = (plan.layout, plan.remat) == (favourite.layout, favourite.remat)
        return plan.step_seconds * (0.9 if is_favourite else 1.0)

    done = tune(planned(), Compiler(step).jobs(), listed=listed, changes=())
    assert done.best is not None
    assert done.best.planned.layout == favourite.layout


def test_other_policies_of_the_plans_own_layout_come_first() -> None:
    given = planned()
    listed = candidates(given)
    own = [each for each in listed if each.layout == given.layout and each.remat != given.remat]
    assert own
    assert own[0] is not listed[0]
    compiler = Compiler(by_flags({}))
    tune(given, compiler.jobs(), listed=listed, changes=())
    first = compiler.asked[1]  # after the plan itself
    assert (first.layout, first.remat) == (given.layout, own[0].remat)


def test_layouts_that_cannot_win_are_not_compiled() -> None:
    compiler = Compiler(by_flags({}))
    listed = candidates(planned())
    done = tune(planned(), compiler.jobs(), listed=listed, changes=())
    assert done.left_out > 0
    assert len(compiler.asked) + done.left_out == len(listed)
    best = planned().step_seconds
    assert all(each.step_seconds < 1.1 * best for each in compiler.asked)


def test_a_layout_whose_flops_alone_take_longer_is_left_out() -> None:
    hopeless = replace(candidates(planned())[1], bound_seconds=1e9)
    done = tune(planned(), Compiler(by_flags({})).jobs(), listed=[hopeless], changes=())
    assert (done.left_out, len(done.trials)) == (1, 1)


def test_where_nothing_fits_thriftier_layouts_are_tried() -> None:
    usable = int(planned().cluster.chip.hbm_bytes)
    thrifty = next(each for each in candidates(planned()) if each.layout != planned().layout)
    small, large = replace(thrifty, memory_bytes=1.0), replace(thrifty, memory_bytes=1e12)

    def step(plan: PlannedRun) -> Answer:
        fits = plan.layout == thrifty.layout
        return answer(plan.step_seconds, memory=usable // 2 if fits else usable + 10**9)

    done = tune(planned(), Compiler(step).jobs(), listed=[large], changes=())
    assert (done.best, done.left_out) == (None, 1)  # by what the plan needed beyond its prediction
    done = tune(planned(), Compiler(step).jobs(), listed=[small], changes=())
    assert done.best is not None
    assert done.best.rung == "layout"


def test_nothing_that_fits_has_no_winner_and_no_further_rungs() -> None:
    died = Answer(status="died", message="SIGFPE")
    done = tune(planned(), Compiler(lambda _: died).jobs(), changes=FLAGS)
    assert done.best is None
    assert set(rungs(done.trials)) == {"plan", "layout"}


def test_died_and_refused_trials_lose_and_the_search_goes_on() -> None:
    def step(plan: PlannedRun) -> float | Answer:
        if "xla_b" in plan.compiler_options:
            return Answer(status="died", message="SIGFPE")
        if "xla_c" in plan.compiler_options:
            return replace(answer(plan.step_seconds), refused=("xla_c=1",))
        return by_flags(GAINS)(plan)

    done = tune(planned(), Compiler(step).jobs(), listed=(), changes=FLAGS)
    assert done.best is not None
    assert {str(each) for each in done.best.changes} == {"layers unrolled: 2", "xla_a=false"}


def test_a_second_run_asks_nothing_and_finds_the_same() -> None:
    compiler = Compiler(by_flags(GAINS))
    first = tune(planned(), compiler.jobs(), changes=FLAGS)
    asked, spent = len(compiler.asked), compiler.now
    again = tune(planned(), compiler.jobs(seconds=1e-9), changes=FLAGS)
    assert (len(compiler.asked), compiler.now) == (asked, spent)
    assert again.best is not None
    assert first.best is not None
    assert again.best.seconds == first.best.seconds
    assert again.best.planned.document == first.best.planned.document
    assert rungs(again.trials) == rungs(first.trials)


def test_a_run_goes_on_where_the_budget_ended_it() -> None:
    compiler = Compiler(by_flags(GAINS), takes=10)
    short = tune(planned(), compiler.jobs(seconds=35), listed=(), changes=FLAGS)
    assert len(compiler.asked) < 6
    assert short.skipped > 0
    before = len(compiler.asked)
    more = tune(planned(), compiler.jobs(seconds=1000), listed=(), changes=FLAGS)
    assert before < len(compiler.asked) == len(more.trials)
    assert more.skipped == 0


def test_the_plan_itself_is_compiled_whatever_the_budget() -> None:
    compiler = Compiler(by_flags(GAINS), takes=1000)
    done = tune(planned(), compiler.jobs(seconds=1), changes=FLAGS)
    assert len(compiler.asked) == 1
    assert done.best is done.first


def test_layouts_leave_some_of_the_budget_to_the_other_rungs() -> None:
    compiler = Compiler(lambda _: 1.0, takes=10)  # the planner is no help
    listed = [replace(each, bound_seconds=0.0, step_seconds=0.01) for each in candidates(planned())]
    done = tune(planned(), compiler.jobs(seconds=100), listed=listed, changes=FLAGS)
    layouts = [each for each in done.trials if each.rung == "layout"]
    assert 10 * len(layouts) <= 100 * LAYOUT_SHARE
    assert "alone" in rungs(done.trials)


def test_an_interrupt_keeps_the_best_so_far() -> None:
    seen: list[Trial] = []

    def stop_after_three(trial: Trial) -> None:
        seen.append(trial)
        if len(seen) == 3:
            raise KeyboardInterrupt

    compiler = Compiler(by_flags(GAINS))
    done = tune(planned(), compiler.jobs(), listed=(), changes=FLAGS, seen=stop_after_three)
    assert done.interrupted
    assert len(done.trials) == 3
    assert done.best is not None
    assert str(done.best.changes[0]) == "xla_a=false"


def test_a_runner_up_is_given_what_gained() -> None:
    listed = candidates(planned())
    other = next(each for each in listed if each.layout != planned().layout)

    def step(plan: PlannedRun) -> float:
        mine = plan.layout == planned().layout
        flag = "xla_a" in plan.compiler_options
        return (0.98 if flag else 1.0) if mine else (0.9 if flag else 1.01)

    near = replace(other, step_seconds=planned().step_seconds, bound_seconds=0.0)
    done = tune(planned(), Compiler(step).jobs(), listed=[near], changes=FLAGS[:1])
    assert rungs(done.trials)[-1] == "runner-up"
    assert done.best is done.trials[-1]


@settings(max_examples=30, deadline=None)
@given(
    gains=st.dictionaries(
        st.sampled_from([str(each) for each in FLAGS[:4]] + ["layers_unrolled=2"]),
        st.floats(-0.2, 0.2),
    ),
    budget=st.floats(1, 200),
    most=st.integers(1, 3),
)
def test_the_best_is_the_least_that_was_read(
    gains: dict[str, float], budget: float, most: int
) -> None:
    compiler = Compiler(by_flags(gains), takes=10)
    listed: list[Candidate] = candidates(planned())[:3]
    done = tune(planned(), compiler.jobs(seconds=budget, most=most), listed=listed, changes=FLAGS)
    assert done.best is not None
    least = min(each.seconds for each in done.trials if each.seconds is not None)
    assert done.best.seconds == pytest.approx(least, rel=0.0021)
    asked = [key(each) for each in compiler.asked]
    assert len(set(asked)) == len(asked)
