"""What `muster tune` says while it works: a line that changes; without a terminal, one a trial."""

from contextlib import suppress
from textwrap import fill
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console

from muster.report.terminal import MAX_WIDTH
from muster.units import format_seconds

if TYPE_CHECKING:
    from rich.status import Status

    from muster.tune.jobs import Budget
    from muster.tune.search import Trial
    from muster.tune.trial import Question


class Shown:
    """Progress on standard error; where nobody reads it any more, none, and the search goes on."""

    def __init__(self, budget: "Budget", *, silent: bool) -> None:
        self._budget, self._silent = budget, silent
        self._screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._running: dict[int, str] = {}
        self._best: float | None = None
        self._status: Status | None = None
        self._lock = Lock()

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._screen.is_terminal and not self._silent:
            self._status = self._screen.status("asking the compiler")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the line that changed."""
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def told(self, question: "Question", stage: str, seconds: float) -> None:
        """A compilation is at a stage; called by the threads that wait, twice a second."""
        if self._status is None:
            return
        with self._lock, suppress(OSError):
            self._running[id(question)] = f"{stage}, {seconds:.0f} s"
            self._update()

    def seen(self, trial: "Trial") -> None:
        """Something was tried."""
        if self._silent:
            return
        with self._lock, suppress(OSError):
            self._running = {}  # those that run say so again within half a second
            if trial.seconds is not None:
                self._best = min(self._best or trial.seconds, trial.seconds)
            line = _line(trial)
            if self._status is None:
                click.echo(fill(line, MAX_WIDTH, subsequent_indent="  "), err=True)
                return
            self._screen.print(line)
            self._update()

    def _update(self) -> None:
        assert self._status is not None
        best = "" if self._best is None else f"best so far {format_seconds(self._best)}; "
        left = f"{format_seconds(self._budget.left)} of the budget left"
        doing = "; ".join(self._running.values())
        self._status.update(f"{best}{left}{f'; {doing}' if doing else ''}")


def _line(trial: "Trial") -> str:
    answer = trial.answer
    if answer.reading is None:
        said = answer.message or answer.status
    elif not answer.reading.fits:
        said = "does not fit"
    else:
        gain = "" if trial.gain is None else f" ({trial.gain:+.1%})"
        said = f"{format_seconds(answer.reading.step_seconds)}{gain}"
    return f"{trial.what}: {said[:100]}{', kept' if answer.kept else ''}"
