"""How a training run looks while it goes: a live line on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from muster.units import format_seconds, format_si

MOST_LINES = 40  # of steps, where output goes to a file
BAR = 24
# Recent steps that tokens/s and the time left are averaged over.
RECENT = 20


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
    """Watches a run for a person.

    Args:
        planned_mfu: the plan's, beside which the measured one is shown.
    """

    def __init__(self, planned_mfu: float) -> None:
        self._planned_mfu = planned_mfu
        self._console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
        self._live: Live | None = None
        self._recent: list[tuple[float, float]] = []  # seconds, tokens/s
        self._shown = 0.0
        self._first: int | None = None

    def begun(self, lines: tuple[str, ...]) -> None:
        """What is about to be trained, and where."""
        for line in lines:
            self._console.print(Text(line))
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._live.update(Text("compiling the step ..."), refresh=True)

    def note(self, line: str) -> None:
        """Something that the user should know; on standard error."""
        if self._live is not None:
            self._console.print(Text(f"! {line}", style="yellow"))
        else:
            print(f"muster: {line}", file=sys.stderr, flush=True)  # noqa: T201

    def compiled(self, seconds: float) -> None:
        """The step is compiled."""
        self._console.print(Text(f"compiled the step in {format_seconds(seconds)}"))

    def stepped(self, report: Step) -> None:
        """Show a step: every one on a terminal, some of them in a file."""
        if self._first is None:
            self._first = report.step
        self._recent = [
            *self._recent[1 - RECENT :],
            (report.step_seconds, report.tokens_per_second),
        ]
        if self._live is not None:
            now = time.monotonic()
            if now - self._shown > 0.1 or report.step == report.of:
                self._live.update(self._bar(report), refresh=True)
                self._shown = now
        every = max(1, report.of // MOST_LINES)
        if self._live is None and (
            report.step in {self._first, report.of} or report.step % every == 0
        ):
            self._console.print(self._line(report))

    def saved(self, step: int) -> None:
        """A checkpoint is being written."""
        if self._live is None:
            self._console.print(Text(f"saved step {step:,}"))

    def ended(self, lines: tuple[str, ...]) -> None:
        """The run is over, or stopped; whatever is live comes to rest."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        for line in lines:
            self._console.print(Text(line))

    def _bar(self, report: Step) -> Text:
        filled = round(BAR * report.step / report.of)
        return Text.assemble(("━" * filled, "green"), ("━" * (BAR - filled), "dim"), " ").append(
            self._line(report)
        )

    def _line(self, report: Step) -> Text:
        seconds = sum(each for each, _ in self._recent) / len(self._recent)
        rate = sum(each for _, each in self._recent) / len(self._recent)
        left = format_seconds(seconds * (report.of - report.step))
        width = len(f"{report.of:,}")
        return Text(
            f"step {report.step:>{width},}/{report.of:,}  loss {report.loss:.4f}  "
            f"{format_si(rate)} tokens/s  MFU {report.mfu:.1%} (plan {self._planned_mfu:.1%})  "
            f"{left} left"
        )


class Silent:
    """Watches a run for a program: only what matters goes to standard error."""

    def begun(self, lines: tuple[str, ...]) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Something that the user should know."""
        print(f"muster: {line}", file=sys.stderr, flush=True)  # noqa: T201

    def compiled(self, seconds: float) -> None:
        """Nothing."""

    def stepped(self, report: Step) -> None:
        """Nothing."""

    def saved(self, step: int) -> None:
        """Nothing."""

    def ended(self, lines: tuple[str, ...]) -> None:
        """Nothing."""
