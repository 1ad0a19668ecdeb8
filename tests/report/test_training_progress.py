"""The live line of a run: its figures, its width, and a reader that goes away."""

import io
import sys
from dataclasses import dataclass

import pytest
from rich.console import Console

from muster.report.training_progress import TerminalProgress


@dataclass(frozen=True, kw_only=True)
class Step:
    step: int
    of: int = 200
    loss: float = 2.5
    tokens_per_second: float = 1000.0
    step_seconds: float = 1.0
    mfu: float = 0.1


def test_rates_are_of_the_time_that_passed_not_means_of_rates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = TerminalProgress(planned_mfu=0.5)
    # A step that was read late looks nearly free: 1000 tokens in a hundredth of a second.
    progress.stepped(Step(step=1))
    progress.stepped(Step(step=200, tokens_per_second=1e5, step_seconds=0.01, mfu=10.0))
    last = capsys.readouterr().out.splitlines()[-1]
    assert "1.98 k tokens/s" in last  # 2000 tokens in 1.01 s
    assert "MFU 19.8%" in last  # (0.1 * 1 + 10 * 0.01) / 1.01
    assert "left" not in last


@pytest.mark.parametrize(("planned", "said"), [(0.5, "MFU 5.0% (plan 50.0%)"), (None, "MFU 5.0%")])
def test_what_is_no_prediction_is_not_shown(planned: float | None, said: str) -> None:
    progress = TerminalProgress(planned_mfu=planned)
    progress._recent = [(1.0, 1234.0, 0.05)]
    assert f"tokens/s  {said}  " in progress._line(Step(step=120)).plain


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_line_fits(width: int) -> None:
    progress = TerminalProgress(planned_mfu=0.5)
    progress._console = Console(file=io.StringIO(), width=width)
    progress._recent = [(1.0, 1234.0, 0.05)]
    line = progress._bar(Step(step=120)).plain
    assert len(line) <= max(width, len(progress._line(Step(step=120)).plain))
    assert line.endswith("left")


def test_a_reader_that_goes_away_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    progress = TerminalProgress(planned_mfu=0.5)
    for step in (1, 2, 200):
        progress.stepped(Step(step=step))
    progress.saving(200)
    assert capsys.readouterr().err.count("training goes on") == 1
