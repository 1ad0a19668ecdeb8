"""metrics.jsonl: a line a step, and never two of the same step after a resume."""

import errno
import json
import math
from pathlib import Path

import pytest

from muster.errors import BadInput
from muster.training.metrics import MetricsLog, check_writable
from muster.training.progress import StepReport


def report(step: int, loss: float = 2.0) -> StepReport:
    return StepReport(
        step=step, of=9, loss=loss, tokens_per_second=1e3, step_seconds=0.1, mfu=0.4,
        learning_rate=1e-3, grad_norm=1.0, accuracy=0.1, balance=0.0, dropped=0.0,
        finite=math.isfinite(loss), host_seconds=0.01,
    )  # fmt: skip


def write(folder: Path, *steps: int, after: int) -> None:
    log = MetricsLog(folder, resumed_at=after, note=print)
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
    log = MetricsLog(tmp_path, resumed_at=0, note=print)
    log.write(report(1, math.nan))
    log.close()
    (line,) = lines(tmp_path)
    assert (line["loss"], line["finite"]) == (None, False)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text("utf-8")


def test_what_is_no_text_is_dropped_too(tmp_path: Path) -> None:
    write(tmp_path, 1, after=0)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00\n" + b"[" * 100_000 + b"\n")
    write(tmp_path, 2, after=1)
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_tensorboard_reads_every_number(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415

    write(tmp_path, 1, 2, after=0)
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    seen: dict[tuple[int, str], float] = {}
    while content:  # length, its checksum, the event, its checksum
        size = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + size])
        seen |= {(event.step, each.tag): each.simple_value for each in event.summary.value}
        content = content[16 + size :]
    assert seen[2, "loss"] == 2.0
    assert seen[1, "tokens_per_second"] == 1e3


def test_a_full_disk_is_said_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    log = MetricsLog(tmp_path, resumed_at=0, note=notes.append)

    class Full:
        def write(self, _: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        write_event = write

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    log.close()  # the real files
    monkeypatch.setattr(log, "_lines", Full())
    monkeypatch.setattr(log, "_board", Full())
    for step in (1, 2, 3):
        log.write(report(step))
    log.close()
    assert notes == [
        "metrics.jsonl is written no more: No space left on device",
        "tensorboard is written no more: No space left on device",
    ]


@pytest.mark.parametrize("name", ["metrics.jsonl", "plan.json"])
def test_what_is_in_the_way_is_named_before_training(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(BadInput, match=f"{name} is in the way"):
        check_writable(tmp_path)
