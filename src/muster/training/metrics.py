"""One object a step: to a file of JSON lines, and to TensorBoard."""

import json
import math
from pathlib import Path
from typing import Any

from muster.training.progress import StepReport

FILE = "metrics.jsonl"


class MetricsLog:
    """Writes every step to RUN_DIR/metrics.jsonl and RUN_DIR/tensorboard.

    A resumed run goes on behind its checkpoint: what was written of later steps is dropped.
    """

    def __init__(self, folder: Path, *, resumed_at: int) -> None:
        """Open the files of a run that stands behind step `resumed_at`."""
        from tensorboardX import SummaryWriter  # noqa: PLC0415 -- slow to import

        path = folder / FILE
        _drop_after(path, resumed_at)
        self._lines = path.open("a", encoding="utf-8")
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at + 1)

    def write(self, report: StepReport) -> None:
        """Append one step."""
        line = {
            "step": report.step,
            "loss": _number(report.loss),
            "tokens_per_second": report.tokens_per_second,
            "step_seconds": report.step_seconds,
            "mfu": report.mfu,
            "learning_rate": report.learning_rate,
            "grad_norm": _number(report.grad_norm),
            "accuracy": report.accuracy,
            "balance": report.balance,
            "dropped": report.dropped,
            "finite": report.finite,
            "host_seconds": report.host_seconds,
        }
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in line.items():
            if name not in {"step", "finite"} and value is not None:
                self._board.add_scalar(name, value, report.step)

    def close(self) -> None:
        """Flush and close both."""
        self._lines.close()
        self._board.close()


def _number(value: float) -> float | None:
    """JSON has no NaN: what is not finite is null."""
    return value if math.isfinite(value) else None


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # a line that was cut short when the run was killed
    path.write_text("".join(f"{line}\n" for line in kept), "utf-8")
