"""metrics.jsonl: a line a step, and never two of the same step after a resume."""

import json
import math
from pathlib import Path

from muster.training.metrics import MetricsLog
from muster.training.progress import StepReport


def report(step: int, loss: float = 2.0) -> StepReport:
    return StepReport(
        step=step, of=9, loss=loss, tokens_per_second=1e3, step_seconds=0.1, mfu=0.4,
        learning_rate=1e-3, grad_norm=1.0, accuracy=0.1, balance=0.0, dropped=0.0,
        finite=math.isfinite(loss), host_seconds=0.01,
    )  # fmt: skip


def write(folder: Path, *steps: int, after: int) -> None:
    log = MetricsLog(folder, resumed_at=after)
    for step in steps:
        log.write(report(step, 2.0 + after / 10))
    log.close()


def lines(folder: Path) -> list[dict[str, object]]:
    text = (folder / "metrics.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_resumed_run_takes_back_what_its_checkpoint_did_not_see(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3, 4, after=0)
    write(tmp_path, 3, 4, 5, after=2)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in lines(tmp_path)] == [2.0, 2.0, 2.2, 2.2, 2.2]


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, after=0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    write(tmp_path, 3, after=2)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, resumed_at=0)
    log.write(report(1, math.nan))
    log.close()
    (line,) = lines(tmp_path)
    assert (line["loss"], line["finite"]) == (None, False)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text("utf-8")
