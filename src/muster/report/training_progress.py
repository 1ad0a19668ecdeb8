"""How a training run looks while it goes: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from contextlib import suppress
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from muster.units import format_seconds, format_si

MOST_LINES = 40  # of steps that stay to be read
BAR = 24
# Recent steps that all figures but the loss are of.
RECENT = 20
REDRAW_SECONDS = 0.1


class Step(Protocol):
    """What a finished step reports (`muster.training.progress.StepReport`)."""

    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def of(self) -> int: ...  # noqa: D102
    @property
    def loss(self) -> float: ...  # noqa: D102
    @property
    def tokens_per_second(self) -> float: ...  # noqa: D102
    @property
    def step_seconds(self) -> float: ...  # noqa: D102
    @property
    def mfu(self) -> float: ...  # noqa: D102


class TerminalProgress:
    """Watches a run for a person; a screen that goes away does not end the run.

    Args:
        planned_mfu: the plan's, beside which the measured one is shown; None where the plan's is no
            prediction.
    """

    def __init__(self, planned_mfu: float | None) -> None:
        self._planned_mfu = planned_mfu
        self._console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
        self._live: Live | None = None
        self._recent: list[tuple[float, float, float]] = []  # seconds, tokens, MFU * seconds
        self._shown = 0.0
        self._first: int | None = None
        self._gone = False

    def begun(self, lines: tuple[str, ...]) -> None:
        """What is about to be trained, and where."""
        for line in lines:
            self._print(Text(line))
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._live.update(Text("compiling the step ..."), refresh=True)

    def note(self, line: str) -> None:
        """Something that the user should know; on standard error."""
        if self._live is not None:
            self._print(Text(f"! {line}", style="yellow"))
        else:
            _to_standard_error(line)

    def compiled(self, seconds: float) -> None:
        """The step is compiled."""
        self._print(Text(f"compiled the step in {format_seconds(seconds)}"))

    def stepped(self, report: Step) -> None:
        """Show a step: every one on the live line, some of them to stay."""
        if self._first is None:
            self._first = report.step
        seconds = report.step_seconds
        figures = (seconds, report.tokens_per_second * seconds, report.mfu * seconds)
        self._recent = [*self._recent[1 - RECENT :], figures]
        every = max(1, report.of // MOST_LINES)
        if report.step in {self._first, report.of} or report.step % every == 0:
            self._print(self._line(report))
        now = time.monotonic()
        if self._live is not None and now - self._shown > REDRAW_SECONDS:
            self._live.update(self._bar(report), refresh=True)
            self._shown = now

    def saving(self, step: int) -> None:
        """A checkpoint begins to be written."""
        self._print(Text(f"saving step {step:,}"))

    def ended(self, lines: tuple[str, ...]) -> None:
        """The run is over, or stopped; whatever is live comes to rest."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        for line in lines:
            self._print(Text(line))

    def _print(self, line: Text) -> None:
        if self._gone:
            return
        try:
            self._console.print(line)
        except (OSError, SystemExit):  # rich leaves by SystemExit when its pipe is closed
            self._gone = True
            _to_standard_error("nobody reads the progress any more; training goes on")

    def _bar(self, report: Step) -> Text:
        line = self._line(report)
        room = self._console.width - len(line.plain) - 2
        if room < BAR // 3:
            return line
        bar = min(BAR, room)
        filled = round(bar * report.step / report.of)
        return Text.assemble(("━" * filled, "green"), ("━" * (bar - filled), "dim"), " ", line)

    def _line(self, report: Step) -> Text:
        seconds, tokens, busy = (sum(each) for each in zip(*self._recent, strict=True))
        left = seconds / len(self._recent) * (report.of - report.step)
        width = len(f"{report.of:,}")
        planned = self._planned_mfu
        beside = "" if planned is None else f" (plan {planned:.1%})"
        words = [
            f"step {report.step:>{width},}/{report.of:,}",
            f"loss {report.loss:.4f}",
            f"{format_si(tokens / seconds)} tokens/s",
            f"MFU {busy / seconds:.1%}{beside}",
        ]
        if report.step < report.of:
            words.append(f"{format_seconds(left)} left")
        return Text("  ".join(words))


def _to_standard_error(line: str) -> None:
    with suppress(OSError):
        print(f"muster: {line}", file=sys.stderr, flush=True)  # noqa: T201


class Silent:
    """Watches a run for a program: only what matters goes to standard error."""

    def begun(self, lines: tuple[str, ...]) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Something that the user should know."""
        _to_standard_error(line)

    def compiled(self, seconds: float) -> None:
        """Nothing."""

    def stepped(self, report: Step) -> None:
        """Nothing."""

    def saving(self, step: int) -> None:
        """Nothing."""

    def ended(self, lines: tuple[str, ...]) -> None:
        """Nothing."""
