"""The winner as a plan, and why it won."""

import json
import re
from dataclasses import replace

import pytest

from muster.planner.plan_file import PlannedRun, planned_run
from muster.planner.step_choices import StepChoices
from muster.tune.choices import Change, Flag, Knob
from muster.tune.outcome import (
    explanation,
    findings,
    to_json,
    verdict,
    winning_document,
)
from muster.tune.search import Tuning, tune
from muster.tune.trial import Answer
from tests.tune.fakes import Compiler, answer, by_flags, planned

CHANGES: tuple[Change, ...] = (
    Flag(name="xla_a", value="true"),
    Flag(name="xla_unknown", value="1"),
    Flag(name="xla_worse", value="1"),
    Knob(name="layers_unrolled", step=StepChoices(layers_unrolled=2)),
)
GAINS = {"xla_a=true": 0.05, "xla_worse=1": -0.05, "layers_unrolled=2": 0.02}


def step(plan: PlannedRun) -> Answer:
    done = answer(by_flags(GAINS)(plan))
    unknown = "xla_unknown" in plan.compiler_options
    return replace(done, refused=("xla_unknown=1",)) if unknown else done


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    return tune(planned(), Compiler(step).jobs(), listed=(), changes=CHANGES)


def test_the_winner_is_a_whole_plan_that_says_what_it_was_tuned_to(tuned: Tuning) -> None:
    document = winning_document(tuned)
    assert document is not None
    again = planned_run(json.loads(json.dumps(document)), where="tuned.json")
    assert again.layout == planned().layout
    assert again.step == StepChoices(layers_unrolled=2)
    assert again.compiler_options == {**planned().compiler_options, "xla_a": "true"}
    assert document["estimate"] == planned().document["estimate"]
    assert document["tuned"]["step_seconds"] < document["tuned"]["given_step_seconds"]
    assert "--xla_a=true" in document["tuned"]["flags"]
    assert document["tuned"]["compiler"] == {"libtpu": "1"}


def test_options_that_were_refused_are_not_in_the_plan() -> None:
    def gains_anyway(plan: PlannedRun) -> Answer:
        given = "xla_unknown" in plan.compiler_options
        done = answer(plan.step_seconds * (0.9 if given else 1.0))
        return replace(done, refused=("xla_unknown=1",)) if given else done

    done = tune(planned(), Compiler(gains_anyway).jobs(), listed=(), changes=CHANGES[1:2])
    document = winning_document(done)
    assert document is not None
    assert "xla_unknown" not in document["compiler"]["options"]


def test_why_in_sentences(tuned: Tuning) -> None:
    said = list(explanation(tuned))
    assert re.search(r"the step goes from .* to .* \(6\.9% less\) with .*xla_a=true", said[0])
    assert "exposed communication" in said[1]
    assert "the compiler's cycles" in said[1]
    assert list(findings(tuned)) == ["options that this compiler does not take: xla_unknown=1"]


def test_verdicts(tuned: Tuning) -> None:
    found = {each.what: verdict(each, tuned) for each in tuned.trials}
    assert found["xla_unknown=1"] == "not taken"
    assert found["xla_worse=1"] == "slower"
    assert found["xla_a=true"] == "gains"
    assert found["xla_a=true + layers unrolled: 2"] == "best"
    died = replace(tuned.trials[1], answer=Answer(status="died", message="SIGFPE"))
    assert verdict(died, tuned) == "died"
    full = replace(tuned.trials[1], answer=Answer(status="too_large", needed_bytes=1))
    assert verdict(full, tuned) == "does not fit"


def test_the_whole_answer_is_json(tuned: Tuning) -> None:
    answer_given = to_json(tuned, budget_seconds=60, spent_seconds=10)
    document = json.loads(json.dumps(answer_given, allow_nan=False))
    assert document["improved"] is True
    assert {each["rung"] for each in document["trials"]} == {"plan", "alone", "together"}


def test_deaths_are_told_once_a_kind() -> None:
    death = Answer(status="died", message="SIGFPE", note="not kept")
    dies = Compiler(lambda plan: death if plan.compiler_options.get("xla_a") else plan.step_seconds)
    changes = [Flag(name="xla_a", value=value) for value in ("1", "2", "3")]
    done = tune(planned(), dies.jobs(), listed=(), changes=changes)
    assert list(findings(done)) == ["xla_a=1 and 2 more: SIGFPE", "not kept"]


def test_what_is_said_where_nothing_else_or_nothing_at_all_was_compiled() -> None:
    alone = tune(planned(), Compiler(step).jobs(seconds=1), listed=(), changes=CHANGES)
    assert list(explanation(alone)) == ["nothing but the plan itself was compiled: it stays"]
    assert list(explanation(Tuning(given=planned()))) == ["nothing was compiled"]
