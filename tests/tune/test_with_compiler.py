"""With the TPU compiler installed: a few trials of a small step."""

from pathlib import Path

import pytest

from muster.planner.step_choices import StepChoices
from muster.proof.compiler import compile_with_known_options
from muster.tune.choices import Flag, Knob
from muster.tune.jobs import Budget, Jobs
from muster.tune.outcome import winning_document
from muster.tune.search import tune
from muster.tune.trial import Answer, Question, answer_of
from tests.proof.test_compile import two_layers

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: muster[tpu]")
pytestmark = pytest.mark.slow


def test_a_few_trials(tmp_path: Path) -> None:
    def ask(question: Question, progress: object) -> Answer:
        del progress
        done = compile_with_known_options(question.planned, {}, folder=tmp_path)
        return answer_of(question.planned, done)

    changes = (
        Knob(name="layers_unrolled", step=StepChoices(layers_unrolled=2)),
        Flag(name="xla_tpu_no_such_option", value="true"),
    )
    jobs = Jobs(ask, lambda _: None, most=1, budget=Budget(seconds=3600))
    done = tune(two_layers(), jobs, listed=(), changes=changes)
    assert [each.answer.status for each in done.trials][:3] == ["compiled"] * 3
    first, unrolled, unknown = done.trials[:3]
    assert unknown.answer.refused == ("xla_tpu_no_such_option=true",)
    assert unknown.answer.kept  # without the option it is the plan itself
    assert unrolled.answer.reading != first.answer.reading
    document = winning_document(done)
    assert document is not None
    assert "xla_tpu_no_such_option" not in document["compiler"]["options"]
    assert document["tuned"]["compiler"]["libtpu"]
