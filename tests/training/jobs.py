"""Small runs on real words, and what they leave behind."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from muster.sharding.mesh import Layout
from muster.training.data import DataConfig
from muster.training.job import TrainingJob
from muster.training.progress import StepReport
from muster.training.step import Objective
from tests.training import tiny

STEPS = 6
VOCAB = 320  # bytes and what marks documents
WORDS = (
    "the",
    "mesh",
    "splits",
    "a",
    "batch",
    "and",
    "gathers",
    "weights",
    "where",
    "they",
    "are",
    "used",
)


def write_corpus(folder: Path, documents: int = 40) -> Path:
    """Text files of some sentences each."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(documents):
        text = " ".join(draw.choice(WORDS, int(draw.integers(5, 60))))
        (folder / f"{number:02}.txt").write_text(text, "utf-8")
    return folder


def job(corpus: Path, folder: Path, layout: Layout, **changes: Any) -> TrainingJob:
    """A run of six steps of 8 x 32 bytes, saved every second step."""
    plan = tiny.planned(tiny.architecture(vocab_size=VOCAB), layout)
    data = DataConfig(
        paths=(corpus,),
        sequence_length=tiny.T,
        batch_sequences=tiny.B,
        seed=changes.pop("data_seed", 0),
    )
    update = tiny.optimizer(total_steps=changes.pop("steps", STEPS))
    return TrainingJob(
        **{
            "planned": plan,
            "data": data,
            "optimizer": update,
            "objective": Objective(),
            "folder": folder,
            "save_every": 2,
            "keep_last": 10,
            **changes,
        }
    )


class Watching:
    """Remembers what a run said; may hand it a signal behind a step."""

    def __init__(self, *, signal_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []
        self.reports: list[StepReport] = []
        self.saves: list[int] = []
        self._signal_at = signal_at

    def begun(self, lines: tuple[str, ...]) -> None:
        self.lines += lines

    def note(self, line: str) -> None:
        self.notes.append(line)

    def compiled(self, seconds: float) -> None:
        assert seconds > 0

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)
        if report.step == self._signal_at:
            signal.raise_signal(signal.SIGTERM)

    def saving(self, step: int) -> None:
        self.saves.append(step)

    def ended(self, lines: tuple[str, ...]) -> None:
        self.lines += lines

    @property
    def losses(self) -> dict[int, float]:
        return {report.step: report.loss for report in self.reports}


def logged(folder: Path) -> dict[int, float]:
    """The loss of every step in a run's metrics; fails where one stands there twice."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines}
    assert len(losses) == len(lines), [line["step"] for line in lines]
    return losses


@contextmanager
def programs_kept(folder: Path) -> Iterator[None]:
    """Keep compiled programs, so that runs of the same program compile it once."""
    names = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in names.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
