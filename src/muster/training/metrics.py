"""One object a step: to a file of JSON lines, and to TensorBoard."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.errors import BadInput
from muster.training.progress import StepReport

FILE = "metrics.jsonl"
BOARD = "tensorboard"


def check_writable(folder: Path) -> None:
    """Make sure before training that a run's metrics can be written where they belong.

    Raises:
        BadInput: something else bears their names.
    """
    for name, is_right, what in (
        (FILE, Path.is_file, "a file"),
        ("plan.json", Path.is_file, "a file"),
        (BOARD, Path.is_dir, "a folder"),
    ):
        path = folder / name
        if path.exists() and not is_right(path):
            raise BadInput(f"{path} is in the way: a run keeps {what} there")


class MetricsLog:
    """Writes every step to RUN_DIR/metrics.jsonl and RUN_DIR/tensorboard.

    A resumed run goes on behind its checkpoint: what was written of later steps is dropped. What
    cannot be written any more (a full disk) is said once and ends neither the run nor its saves.
    """

    def __init__(self, folder: Path, *, resumed_at: int, note: Callable[[str], None]) -> None:
        """Open the files of a run that stands behind step `resumed_at`."""
        self._note = note
        path = folder / FILE
        _drop_after(path, resumed_at)
        self._lines: Any = path.open("a", encoding="utf-8")
        self._board: Any = _events(folder / BOARD)

    def write(self, report: StepReport) -> None:
        """Append one step."""
        line = {
            "step": report.step,
            "loss": _number(report.loss),
            "tokens_per_second": _number(report.tokens_per_second),
            "step_seconds": report.step_seconds,
            "mfu": _number(report.mfu),
            "learning_rate": report.learning_rate,
            "grad_norm": _number(report.grad_norm),
            "accuracy": _number(report.accuracy),
            "balance": _number(report.balance),
            "dropped": _number(report.dropped),
            "finite": report.finite,
            "host_seconds": report.host_seconds,
        }
        if self._lines is not None:
            try:
                self._lines.write(json.dumps(line, allow_nan=False) + "\n")
                self._lines.flush()
            except OSError as error:
                self._note(f"{FILE} is written no more: {error.strerror}")
                self._lines = None
        if self._board is not None:
            numbers = {key: value for key, value in line.items() if isinstance(value, float)}
            try:
                self._board.write_event(_event(report.step, numbers))
                self._board.flush()
            except OSError as error:
                self._note(f"{BOARD} is written no more: {error.strerror}")
                self._board = None

    def close(self) -> None:
        """Close both."""
        for stream in (self._lines, self._board):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                continue  # a full disk, of which a note has told


def _events(folder: Path) -> Any:
    """A writer of TensorBoard's event files that writes at once.

    tensorboardX's own `SummaryWriter` hands events to a thread behind a bounded queue: when the
    disk is full the thread dies and the queue, once it is full too, stops the run for ever.
    """
    from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415 -- slow to import

    folder.mkdir(parents=True, exist_ok=True)
    return EventsWriter(str(folder / "events"))


def _event(step: int, numbers: dict[str, float]) -> Any:
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))


def _number(value: float) -> float | None:
    """JSON has no NaN: what is not finite is null."""
    return value if math.isfinite(value) else None


def _drop_after(path: Path, step: int) -> None:
    """Keep the lines up to a step; what is no such line was cut short when the run was killed."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    whole.write_text("".join(f"{line}\n" for line in kept), "utf-8")
    whole.replace(path)
