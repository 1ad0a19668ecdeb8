"""Several compilations at once: cores, memory, the budget, an end before they are done."""

import time
from pathlib import Path
from threading import Event, Lock

import pytest

from muster.errors import BadInput
from muster.planner.step_choices import StepChoices
from muster.proof.child import Progress
from muster.tune.choices import with_step
from muster.tune.jobs import CHILD_BYTES, Budget, Jobs, memory_available
from muster.tune.trial import Answer, Question
from tests.tune.fakes import answer, planned

QUESTIONS = [
    Question(planned=with_step(planned(), StepChoices(layers_unrolled=number)))
    for number in range(1, 7)
]


class Slow:
    """Counts how many run at once; each waits until it is told that it may end, or must."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.ended_early = 0
        self.go, self.lock = Event(), Lock()

    def ask(self, question: Question, progress: Progress) -> Answer:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            while not self.go.wait(0.01):
                progress("compiling the step", 1.0)
        except BaseException:
            self.ended_early += 1
            raise
        finally:
            with self.lock:
                self.running -= 1
        return answer(float(question.planned.step.layers_unrolled))


def nothing(question: Question) -> None:
    del question


def test_as_many_at_once_as_asked_for() -> None:
    slow = Slow()
    slow.go.set()
    jobs = Jobs(slow.ask, nothing, most=3, budget=Budget(seconds=60), available=lambda: None)
    found = list(jobs.answers(QUESTIONS))
    assert {each.planned.step.layers_unrolled for each, _ in found} == {1, 2, 3, 4, 5, 6}
    assert slow.most <= 3
    assert jobs.budget.spent > 0


def test_one_at_a_time_where_memory_is_short() -> None:
    slow = Slow()
    slow.go.set()
    short = Jobs(
        slow.ask, nothing, most=4, budget=Budget(seconds=60), available=lambda: 1.5 * CHILD_BYTES
    )
    assert len(list(short.answers(QUESTIONS))) == 6  # one goes ahead even where none has room
    assert slow.most == 1


def test_a_child_that_took_more_is_what_the_next_are_thought_to_take() -> None:
    def large(question: Question, progress: Progress) -> Answer:
        del question, progress
        return Answer(status="died", peak_rss_bytes=10**10)

    jobs = Jobs(large, nothing, most=1, budget=Budget(seconds=60))
    list(jobs.answers(QUESTIONS[:1]))
    assert jobs.child_bytes == 1e10


def test_the_end_of_the_budget_ends_what_runs() -> None:
    slow = Slow()
    jobs = Jobs(slow.ask, nothing, most=2, budget=Budget(seconds=0.1), available=lambda: None)
    assert list(jobs.answers(QUESTIONS)) == []
    assert slow.ended_early == 2
    assert slow.running == 0


def test_whoever_leaves_leaves_nothing_running() -> None:
    slow = Slow()
    jobs = Jobs(slow.ask, nothing, most=2, budget=Budget(seconds=60), available=lambda: None)

    found = jobs.answers([*QUESTIONS])
    begun = time.monotonic()
    slow.go.set()
    next(found)
    slow.go.clear()
    found.close()  # what a KeyboardInterrupt in the caller comes to
    assert slow.running == 0
    assert time.monotonic() - begun < 5


def test_what_is_kept_is_free_and_needs_no_room() -> None:
    def never(question: Question, progress: Progress) -> Answer:
        raise AssertionError(question, progress)

    jobs = Jobs(
        never,
        lambda _: answer(1.0),
        most=1,
        budget=Budget(seconds=0.0),
        available=lambda: 0.0,
    )
    assert len(list(jobs.answers(QUESTIONS))) == 6
    assert jobs.budget.spent == 0


def test_none_begins_that_is_not_likely_to_end_in_time() -> None:
    budget = Budget(seconds=100)
    assert budget.allows_another()
    budget.spent, budget.ended = 50, [60.0, 60.0, 70.0]
    assert budget.allows_another()
    budget.spent = 60
    assert not budget.allows_another()


def test_a_question_without_an_answer_ends_them_all() -> None:
    def bad(question: Question, progress: Progress) -> Answer:
        del question, progress
        raise BadInput("no such step")

    jobs = Jobs(bad, nothing, most=2, budget=Budget(seconds=60))
    with pytest.raises(BadInput):
        list(jobs.answers(QUESTIONS))


def test_memory_that_is_available(tmp_path: Path) -> None:
    held = tmp_path / "meminfo"
    held.write_text("MemTotal:  100 kB\nMemAvailable:   2048 kB\n")
    assert memory_available(held) == 2048 * 1024
    held.write_text("nothing\n")
    assert memory_available(held) is None
    assert memory_available(tmp_path / "none") is None
