"""The rungs of a search, and how it spends its budget.

    the plan itself          whatever the budget: what everything is compared with
    layouts                  the planner's best first, as long as one could still win
    each choice alone        flags and step knobs, on the best layout so far
    those that gained        together: the best first, each kept where it still gains
    runners-up               other layouts that came near, with what gained

The planner ranks layouts for nothing, so it is the first rung; few of its best are compiled, whole.
It is off by several percent, either way: how far it was on those that the compiler has read says
which of the others could still win, so a layout that it wrongly put behind is promoted, and one
that it wrongly put in front costs one compilation. (Models of a few layers are no cheaper rung: all
layers are one loop, so two of LLaMA-3 8B's 32 take 93% of the processor time of all.)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun
from muster.proof.memory import predicted_memory
from muster.sharding.mesh import Layout
from muster.tune.choices import Change, Placement, knobs, placements_of, with_changes
from muster.tune.flags import flags_for
from muster.tune.jobs import Jobs
from muster.tune.layouts import Candidate, candidates, layout_name, predicted_seconds
from muster.tune.trial import Answer, Question, Reading

type Rung = Literal["plan", "layout", "alone", "together", "runner-up"]

# Layouts get at most so much of the budget where others still could win.
LAYOUT_SHARE = 0.5
# Less than this is within what a reading changes by itself from one schedule to another.
LEAST_GAIN = 0.002
# How much kinder the compiler may be to the next layout than it was to any so far, after one; half
# of that after two. On docs/verified-plans.md its steps are 5% to 32% shorter than the planner's.
SLACK = 0.08
RUNNERS_UP, RUNNER_UP_WITHIN = 2, 1.04


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Something tried, and what it gained.

    Attributes:
        what: the layout, or the changes.
        changes: beyond the plan's own options and step.
        against: seconds of the step that it was to beat; None where none fits yet.
    """

    rung: Rung
    what: str
    planned: PlannedRun
    answer: Answer
    changes: tuple[Change, ...] = ()
    against: float | None = None

    @property
    def seconds(self) -> float | None:
        """Of its step; None unless it fits."""
        return self.answer.step_seconds

    @property
    def gain(self) -> float | None:
        """The share of the step that it saves; below 0 where it costs."""
        if self.seconds is None or self.against is None:
            return None
        return 1 - self.seconds / self.against

    @property
    def gains(self) -> bool:
        """Whether it saves more than readings are apart by themselves."""
        if self.seconds is None:
            return False
        return self.gain is None or self.gain > LEAST_GAIN


def _tell_nobody(trial: Trial) -> None:
    del trial


@dataclass(kw_only=True)
class Tuning:
    """All that was tried, and the best of it.

    Attributes:
        given: the plan to tune.
        left_out: layouts that could not win, so that they were not compiled.
        skipped: of the questions, those for which there was no budget left.
        interrupted: whether the user ended it.
    """

    given: PlannedRun
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    left_out: int = 0
    skipped: int = 0
    interrupted: bool = False
    seen: Callable[[Trial], None] = _tell_nobody

    def add(self, trial: Trial) -> None:
        """Take note of a trial."""
        self.trials.append(trial)
        if trial.seconds is not None and (self.best is None or _beats(trial, self.best)):
            self.best = trial
        self.seen(trial)

    @property
    def first(self) -> Trial | None:
        """The trial of the plan itself."""
        return next((each for each in self.trials if each.rung == "plan"), None)

    @property
    def best_seconds(self) -> float | None:
        """Of the best step so far."""
        return self.best.seconds if self.best else None

    @property
    def best_reading(self) -> Reading | None:
        """Of the best step so far."""
        return self.best.answer.reading if self.best else None


def _beats(trial: Trial, best: Trial) -> bool:
    """Whether it is clearly better: of equals what was there first stays."""
    assert trial.seconds is not None
    assert best.seconds is not None
    return trial.seconds < (1 - LEAST_GAIN) * best.seconds


def tune(
    planned: PlannedRun,
    jobs: Jobs,
    *,
    seen: Callable[[Trial], None] = _tell_nobody,
    listed: Sequence[Candidate] | None = None,
    changes: Sequence[Change] | None = None,
) -> Tuning:
    """Let the compiler choose; an interrupt ends it with what there is.

    Args:
        planned: the plan to begin with.
        jobs: asks the compiler.
        seen: told every trial.
        listed: layouts to try; None for the planner's best.
        changes: choices to try on the best; None for all that suit its chip.

    Raises:
        BadInput: there is no such step to compile, or this machine cannot compile the plan's.
    """
    tuning = Tuning(given=planned, seen=seen)
    try:
        own = layout_name(planned.layout, planned.remat)
        for trial in _ask(tuning, jobs, "plan", [(own, planned, ())], essential=True):
            if trial.answer.status == "bad_input" or trial.answer.machines_fault:
                raise BadInput(trial.answer.message)
        _layouts(tuning, jobs, candidates(planned) if listed is None else listed)
        if tuning.best is not None:
            tried = tuple(_changes(tuning.best.planned)) if changes is None else changes
            gained = _alone(tuning, jobs, tried)
            _together(tuning, jobs, gained)
            _runners_up(tuning, jobs)
    except KeyboardInterrupt:
        tuning.interrupted = True
    return tuning


def _changes(planned: PlannedRun) -> Iterator[Change]:
    """Placements, flags and knobs by turns, so that a short budget sees the best of each."""
    kinds: list[Iterator[Change]] = [placements_of(planned), flags_for(planned), knobs(planned)]
    while kinds:
        for kind in tuple(kinds):
            change = next(kind, None)
            if change is None:
                kinds.remove(kind)
            else:
                yield change


type Asked = tuple[str, PlannedRun, tuple[Change, ...]]


def _ask(
    tuning: Tuning,
    jobs: Jobs,
    rung: Rung,
    asked: Sequence[Asked],
    *,
    essential: bool = False,
    only_kept: bool = False,
) -> list[Trial]:
    """Ask the compiler; every trial is against the best of when it was asked."""
    against, found = tuning.best_seconds, list[Trial]()
    questions = {
        id(planned): (what, planned, changes, Question(planned=planned))
        for what, planned, changes in asked
    }
    for question, answer in jobs.answers(
        [each[3] for each in questions.values()], essential=essential, only_kept=only_kept
    ):
        what, planned, changes, _ = questions[id(question.planned)]
        trial = Trial(
            rung=rung,
            what=what,
            planned=planned,
            answer=answer,
            changes=changes,
            against=against,
        )
        tuning.add(trial)
        found.append(trial)
    tuning.skipped += len(asked) - len(found)
    return found


def _layouts(tuning: Tuning, jobs: Jobs, listed: Sequence[Candidate]) -> None:
    """Compile layouts, the best by the planner first, as long as one of the rest could win.

    The plan's own layout with other policies comes before all others: what values cost that are
    stored, not computed again, is what the planner sees least of.
    """
    budget = jobs.budget.seconds * LAYOUT_SHARE
    given = tuning.given
    waiting = [
        each
        for each in listed
        if (each.layout, each.remat, each.cluster.name)
        != (given.layout, given.remat, given.cluster.name)
    ]
    waiting.sort(key=lambda each: (each.layout, each.cluster.name) != _place(given))
    while waiting:
        able = [each for each in waiting if _could_win(each, tuning)]
        batch = able[: jobs.most]
        if not batch:
            break
        waiting = [each for each in waiting if each not in batch]
        plans = [(each, each.plan(given)) for each in batch]
        asked: list[Asked] = [(str(each), plan, ()) for each, plan in plans if plan is not None]
        spent = jobs.budget.spent >= budget and tuning.best is not None
        _ask(tuning, jobs, "layout", asked, only_kept=spent)
    tuning.left_out += len(waiting)


def _place(planned: PlannedRun) -> tuple[Layout, str]:
    return planned.layout, planned.cluster.name


def _could_win(candidate: Candidate, tuning: Tuning) -> bool:
    """Whether the compiler may still find a layout better than the best, and that it fits."""
    best = tuning.best_seconds
    read = [each for each in tuning.trials if each.rung in {"plan", "layout"}]
    short = [
        each.answer.needed_bytes / predicted
        for each in read
        if each.answer.needed_bytes and (predicted := predicted_memory(each.planned).get("total"))
    ]
    usable = candidate.cluster.chip.hbm_bytes / candidate.cluster.chip.devices_per_chip
    if short and candidate.memory_bytes * min(short) > usable:
        return False
    if best is None:
        return True
    ratios = [each.seconds / predicted_seconds(each.planned) for each in read if each.seconds]
    layouts = len({_place(each.planned) for each in read if each.seconds})
    kindest = min(ratios) * (1 - SLACK / layouts)
    return candidate.bound_seconds < best and candidate.step_seconds * kindest < best


def _alone(tuning: Tuning, jobs: Jobs, changes: Sequence[Change]) -> list[Trial]:
    """Each change by itself on the best layout; those that gain, the best first."""
    assert tuning.best is not None
    begun = tuning.best
    asked: list[Asked] = [
        (str(change), change.on(begun.planned), (change,))
        for change in changes
        if not _is_no_change(change, begun.planned)
    ]
    tried = _ask(tuning, jobs, "alone", asked)
    gained = sorted((each for each in tried if each.gains), key=lambda each: each.seconds or 0.0)
    once: dict[str, Trial] = {}
    for trial in gained:  # of several values of one choice the best
        once.setdefault(trial.changes[0].name, trial)
    return list(once.values())


def _is_no_change(change: Change, planned: PlannedRun) -> bool:
    return change.on(planned).document == planned.document


def _together(tuning: Tuning, jobs: Jobs, gained: Sequence[Trial]) -> None:
    """Add what gained alone one after the other, and keep it where it gains there too."""
    if len(gained) < 2:
        return
    held = gained[0]
    for trial in gained[1:]:
        changes = (*held.changes, *trial.changes)
        planned = with_changes(held.planned, trial.changes)
        asked: list[Asked] = [(" + ".join(map(str, changes)), planned, changes)]
        for done in _ask(tuning, jobs, "together", asked):
            if done.gains:
                held = done


def _runners_up(tuning: Tuning, jobs: Jobs) -> None:
    """Give what gained to other layouts that came near."""
    best = tuning.best
    if best is None or not best.changes:
        return
    base = min(
        each.seconds
        for each in tuning.trials
        if each.seconds is not None and each.planned.layout == best.planned.layout
    )
    near = sorted(
        (
            each
            for each in tuning.trials
            if each.rung in {"plan", "layout"}
            and each.seconds is not None
            and _layout_of(each) != _layout_of(best)
            and each.seconds <= RUNNER_UP_WITHIN * base
        ),
        key=lambda each: each.seconds or 0.0,
    )
    changes = tuple(each for each in best.changes if not isinstance(each, Placement))
    asked: list[Asked] = [
        (f"{each.what} + the same choices", with_changes(each.planned, changes), changes)
        for each in near[:RUNNERS_UP]
        if changes  # a placement suits its own layout alone
    ]
    _ask(tuning, jobs, "runner-up", asked)


def _layout_of(trial: Trial) -> tuple[object, ...]:
    planned = trial.planned
    return (planned.layout, planned.remat, planned.cluster.name)
