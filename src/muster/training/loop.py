"""The training loop: batches in, steps dispatched ahead, checkpoints and metrics out."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from muster.errors import AnswerIsNo, MusterError
from muster.training.checkpoints import Checkpoints
from muster.training.feed import Feed
from muster.training.metrics import MetricsLog
from muster.training.optimizer import Rates
from muster.training.progress import StepReport, Watcher
from muster.training.setup import Compiled
from muster.training.step import Metrics, TrainState
from muster.training.stopping import StopRequests

type OnNan = Literal["stop", "skip"]
# With `skip`: so many steps in a row without a finite loss are no accident any more.
MOST_SKIPPED_IN_A_ROW = 50


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What turns a step's time into the figures that people compare.

    Attributes:
        planned_step_seconds: of the plan.
        planned_mfu: of the same step, as a share of peak, 6N.
        batch_tokens: tokens of a global batch.
    """

    planned_step_seconds: float
    planned_mfu: float
    batch_tokens: int

    def mfu(self, step_seconds: float) -> float:
        """The MFU of a measured step: the plan's, by how much faster or slower it is."""
        return self.planned_mfu * self.planned_step_seconds / step_seconds


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """When a run ends and what it leaves behind.

    Attributes:
        steps: of the whole run.
        save_every: steps between checkpoints; the last step is always saved.
        on_nan: what a step without a finite loss does.
        meta: what every checkpoint records beside the arrays.
        learning_rates: of each step, the first being 0.
    """

    steps: int
    save_every: int
    on_nan: OnNan
    meta: Mapping[str, Any]
    learning_rates: Rates
    pace: Pace


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: the last step that was done.
        stopped_by: the signal that ended it early, or None.
        last: the report of the last step that this process did, or None.
    """

    step: int
    stopped_by: str | None
    last: StepReport | None


def train(
    state: TrainState,
    *,
    step: Compiled,
    feed: Feed,
    checkpoints: Checkpoints,
    config: LoopConfig,
    folder: Path,
    watcher: Watcher,
    stop: StopRequests,
) -> Outcome:
    """Train from a state's step to the last one.

    A step is dispatched before the report of the one before is read, so that devices never wait for
    the host.

    Raises:
        AnswerIsNo: the loss is not finite and `on_nan` is `stop`, or too often under `skip`.
        SaveFailed: a checkpoint could not be written.
    """
    done = int(state.step)
    saved = done
    log = (
        MetricsLog(folder, resumed_at=done, note=watcher.note) if jax.process_index() == 0 else None
    )
    reports = _Reports(config, log, watcher)

    def save() -> None:
        nonlocal saved
        reports.finish()
        if saved != done:
            watcher.saving(done)
            _save(checkpoints, state, done, feed.state(), config)
            saved = done

    try:
        while done < config.steps and stop.name is None:
            began = time.perf_counter()
            try:
                batch = next(feed)
            except MusterError:
                save()  # a document that cannot be read must not cost the steps before it
                checkpoints.wait()
                raise
            state, metrics = step(state, batch, config.learning_rates[done])
            done += 1
            reports.dispatched(done, metrics, time.perf_counter() - began)
            stopping = stop.wanted(done)
            if done % config.save_every == 0 or done == config.steps or stopping:
                save()
            if stopping:
                break
        reports.finish()
        checkpoints.wait()
        return Outcome(
            step=done, stopped_by=stop.name if done < config.steps else None, last=reports.last
        )
    finally:
        if log is not None:
            log.close()


def _save(
    checkpoints: Checkpoints,
    state: TrainState,
    step: int,
    data: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    config: LoopConfig,
) -> None:
    checkpoints.save(
        step,
        params=state.params,
        optimizer=state.optimizer,
        data=data,
        meta={**config.meta, "step": step},
    )


class _Reports:
    """Reads each step's metrics one step late, times it, and stops what is not finite."""

    def __init__(self, config: LoopConfig, log: MetricsLog | None, watcher: Watcher) -> None:
        self.last: StepReport | None = None
        self._config = config
        self._log = log
        self._watcher = watcher
        self._pending: tuple[int, Metrics, float] | None = None
        self._ended = time.perf_counter()
        self._skipped = 0

    def dispatched(self, step: int, metrics: Metrics, host_seconds: float) -> None:
        """Remember a step that runs now, and report the one before."""
        self.finish()
        self._pending = (step, metrics, host_seconds)

    def finish(self) -> None:
        """Wait for the step that runs, and report it."""
        if self._pending is None:
            return
        step, metrics, host_seconds = self._pending
        self._pending = None
        values: Metrics = jax.device_get(metrics)
        now = time.perf_counter()
        seconds, self._ended = now - self._ended, now
        self.last = self._report(step, values, seconds, host_seconds)
        if self._log is not None:
            self._log.write(self.last)
        self._watcher.stepped(self.last)
        self._check(self.last)

    def _report(
        self, step: int, values: Metrics, seconds: float, host_seconds: float
    ) -> StepReport:
        pace = self._config.pace
        return StepReport(
            step=step,
            of=self._config.steps,
            loss=float(values.loss),
            tokens_per_second=pace.batch_tokens / seconds,
            step_seconds=seconds,
            mfu=pace.mfu(seconds),
            learning_rate=float(self._config.learning_rates[step - 1]),
            grad_norm=float(values.grad_norm),
            accuracy=float(values.accuracy),
            balance=float(values.balance),
            dropped=float(values.dropped),
            finite=bool(values.finite),
            host_seconds=host_seconds,
        )

    def _check(self, report: StepReport) -> None:
        if report.finite:
            self._skipped = 0
            return
        self._skipped += 1
        what = "loss" if not math.isfinite(report.loss) else "gradient"
        if self._config.on_nan == "skip" and self._skipped < MOST_SKIPPED_IN_A_ROW:
            self._watcher.note(f"step {report.step}: the {what} is not finite; nothing was updated")
            return
        times = f" for the {self._skipped}th time in a row" if self._skipped > 1 else ""
        raise AnswerIsNo(
            f"step {report.step}: the {what} is not finite{times}; nothing was updated and the "
            "checkpoints before it are untouched; --on-nan skip passes over such steps"
        )
