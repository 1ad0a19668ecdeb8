"""Predictions against measurements: one score a row, one a group, and tables of errors.

error = predicted seconds / measured seconds - 1: positive where the prediction is too slow. Means
and medians are of absolute errors over groups, each group once however often it was published.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from muster.errors import MusterError
from muster.validation.groups import Group, geometric_mean, group_setups
from muster.validation.reasons import likely_reason
from muster.validation.runs import Run
from muster.validation.setup import Setup, Skipped, setup_of

type Predictor = Callable[[Setup], float]

HALF_PRECISION = {"bf16", "f16"}


@dataclass(frozen=True, kw_only=True)
class RowScore:
    """One row of the file.

    Attributes:
        skipped: why there is no prediction; None where there is one.
    """

    id: str
    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    error: float | None = None
    group: str | None = None
    skipped: str | None = None


class Scored(Protocol):
    """What has an error: a set-up's step time, or its memory."""

    @property
    def group(self) -> Group:
        """Its rows."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """One set-up, its rows averaged geometrically."""

    group: Group
    predicted_seconds: float

    @property
    def reason(self) -> str:
        """Why it is off, if that is known."""
        return likely_reason(self.group, self.predicted_seconds)

    @property
    def setup(self) -> Setup:
        """The group's first row."""
        return self.group.setups[0]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_seconds / self.group.measured_seconds - 1


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All rows of a file, in its order, and the groups that were predicted."""

    rows: tuple[RowScore, ...]
    groups: tuple[GroupScore, ...]

    @property
    def skipped(self) -> tuple[RowScore, ...]:
        """Rows without a prediction."""
        return tuple(row for row in self.rows if row.skipped is not None)


@dataclass(frozen=True, kw_only=True)
class ErrorLine:
    """Errors of some groups together.

    Attributes:
        name: what they have in common.
        groups: how many.
        rows: measurements in them.
        median: of absolute errors.
        mean: of absolute errors.
        bias: mean signed error.
        worst: the error of largest size, signed.
    """

    name: str
    groups: int
    rows: int
    median: float
    mean: float
    bias: float
    worst: float


def score_runs(runs: Iterable[Run], predict: Predictor, *, incomplete: bool = False) -> Scores:
    """Predict every row that can be.

    Args:
        runs: the rows.
        predict: seconds of one step of a set-up.
        incomplete: also rows that are not marked complete, where enough is stated.
    """
    read = [setup_of(run, incomplete=incomplete) for run in runs]
    predictions = {
        index: _prediction(each, predict)
        for index, each in enumerate(read)
        if isinstance(each, Setup)
    }
    seconds = {
        id(read[index]): made for index, made in predictions.items() if isinstance(made, float)
    }
    groups = group_setups(each for each in read if isinstance(each, Setup) and id(each) in seconds)
    group_of = {id(setup): group.id for group in groups for setup in group.setups}
    rows = [
        _row(each, predictions.get(index), group_of.get(id(each)))
        for index, each in enumerate(read)
    ]
    scored = (
        GroupScore(
            group=group,
            predicted_seconds=geometric_mean(seconds[id(setup)] for setup in group.setups),
        )
        for group in groups
    )
    return Scores(rows=tuple(rows), groups=tuple(scored))


def errors_of(name: str, groups: Iterable[Scored]) -> ErrorLine | None:
    """The errors of some groups together; None where there are none."""
    chosen = list(groups)
    if not chosen:
        return None
    errors = [each.error for each in chosen]
    sizes = [abs(error) for error in errors]
    return ErrorLine(
        name=name,
        groups=len(chosen),
        rows=sum(len(each.group.setups) for each in chosen),
        median=statistics.median(sizes),
        mean=statistics.fmean(sizes),
        bias=statistics.fmean(errors),
        worst=max(errors, key=abs),
    )


def errors_by[S: Scored](groups: Iterable[S], key: Callable[[S], str]) -> tuple[ErrorLine, ...]:
    """One line for each value of `key`, those of most groups first."""
    parts: dict[str, list[S]] = {}
    for each in groups:
        parts.setdefault(key(each), []).append(each)
    lines = [line for name, part in parts.items() if (line := errors_of(name, part))]
    return tuple(sorted(lines, key=lambda line: (-line.groups, line.name)))


def worst_groups(groups: Iterable[GroupScore], *, above: float = 0.0) -> tuple[GroupScore, ...]:
    """Groups off by more than `above`, the farthest first."""
    off = [each for each in groups if abs(each.error) > above]
    return tuple(sorted(off, key=lambda each: (-abs(each.error), each.group.id)))


def is_half_precision(score: GroupScore) -> bool:
    """Whether its matmuls take bf16 or fp16."""
    return score.setup.formats.compute in HALF_PRECISION


def source_of(score: GroupScore) -> str:
    """The source group."""
    return score.setup.run.source_group or "unnamed"


def hardware_of(score: GroupScore) -> str:
    """The chip."""
    return score.setup.cluster.chip.id


def half_name(score: GroupScore) -> str:
    """Whether constants were fitted on it."""
    return score.group.half


def precision_of(score: GroupScore) -> str:
    """What the matmuls take."""
    names = {"f16": "fp16", "f8": "fp8", "f4": "fp4", "f32": "fp32"}
    compute = score.setup.formats.compute
    return names.get(compute, compute)


def parallelism_of(score: GroupScore) -> str:
    """The kinds of parallelism that take part, as "FSDP + TP".

    Data parallelism beside a pipeline or tensor ways is not named: nearly all have it.
    """
    layout = score.setup.layout
    model = {
        "PP": layout.stage,
        "TP": layout.tensor,
        "CP": layout.sequence,
        "EP": layout.expert,
    }
    names = [name for name, ways in model.items() if ways > 1]
    if layout.fsdp > 1:
        names.insert(0, "FSDP")
    if layout.slice > 1:
        names.append("slices")
    return " + ".join(names) or ("DP" if layout.data > 1 else "one chip")


def _prediction(setup: Setup, predict: Predictor) -> float | str:
    """Seconds, or why there are none."""
    try:
        seconds = float(predict(setup))
    except MusterError as error:
        return f"no prediction: {error}"
    except (ArithmeticError, ValueError, LookupError) as error:
        return f"no prediction: {type(error).__name__}: {error}"
    if not math.isfinite(seconds) or seconds <= 0:
        return f"no prediction: {seconds} seconds"
    return seconds


def _row(read: Setup | Skipped, predicted: float | str | None, group: str | None) -> RowScore:
    if isinstance(read, Skipped):
        return RowScore(id=read.id, skipped=read.reason)
    if not isinstance(predicted, float):
        return RowScore(
            id=read.id, measured_seconds=read.step_seconds, skipped=predicted or "no prediction"
        )
    return RowScore(
        id=read.id,
        measured_seconds=read.step_seconds,
        predicted_seconds=predicted,
        error=predicted / read.step_seconds - 1,
        group=group,
    )
