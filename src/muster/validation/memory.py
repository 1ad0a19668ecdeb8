"""Predicted memory against what runs published, term by term.

Compared is what the row measured: where its notes say `max allocated`, what the program asks for;
else what the chip is seen to hold, the runtime's own and fragmentation included. Nothing in the
memory model was fitted: what it takes for granted stands in `roofline.step_memory`.

Every other run says one thing as well: it fitted. `RanScore` asks whether that is predicted.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from muster.errors import MusterError
from muster.roofline.step_memory import StepMemory, step_memory
from muster.roofline.step_time import StepModel
from muster.validation.groups import Group, group_setups
from muster.validation.predict import cluster_of, kernel_of, policy_of, software_of
from muster.validation.runs import Run
from muster.validation.setup import Setup, Skipped, setup_of

GOAL = 0.10  # what an error is to stay within
GB = 1e9
TERMS = (
    "params",
    "gradients",
    "optimizer",
    "activations",
    "workspace",
    "logits",
    "gathered",
    "reserve",
)


@dataclass(frozen=True, kw_only=True)
class MemoryScore:
    """One set-up whose memory was published.

    Attributes:
        group: its rows that publish it.
        memory: predicted, on the fullest stage.
        measured_bytes: the mean over the rows.
    """

    group: Group
    memory: StepMemory
    measured_bytes: float

    @property
    def setup(self) -> Setup:
        """The group's first row."""
        return self.group.setups[0]

    @property
    def measure(self) -> Literal["allocated", "total"]:
        """What of the predicted memory the row's figure is of."""
        return "allocated" if "max allocated" in self.setup.run.notes.lower() else "total"

    @property
    def predicted_bytes(self) -> float:
        """Of what was measured."""
        return self.memory.allocated if self.measure == "allocated" else self.memory.total

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def reason(self) -> str:
        """Why it may be off; blank within the goal."""
        if abs(self.error) <= GOAL:
            return ""
        return next(_reasons(self), "no known reason")


@dataclass(frozen=True, kw_only=True)
class RanScore:
    """One set-up that ran, so that it must have fitted."""

    group: Group
    memory: StepMemory

    @property
    def filled(self) -> float:
        """Predicted over usable memory: more than 1 is predicted not to fit."""
        return self.memory.total / self.memory.usable


@dataclass(frozen=True, kw_only=True)
class MemoryScores:
    """Predictions of memory.

    Attributes:
        groups: set-ups that publish it.
        skipped: rows that publish it and could not be predicted.
        ran: every set-up, whether it publishes its memory or not.
    """

    groups: tuple[MemoryScore, ...]
    skipped: tuple[Skipped, ...]
    ran: tuple[RanScore, ...]


def score_memory(runs: Iterable[Run], *, incomplete: bool = False) -> MemoryScores:
    """Predict the memory of every row, and compare with those that publish it."""
    read = [setup_of(run, incomplete=incomplete) for run in runs]
    skipped = [each for each in read if isinstance(each, Skipped) and each.run.measured_memory_gb]
    scores, ran = [], []
    for group in group_setups(each for each in read if isinstance(each, Setup)):
        measured = tuple(setup for setup in group.setups if setup.run.measured_memory_gb)
        try:
            memory = predict_memory(group.setups[0])
        except (MusterError, ArithmeticError, ValueError, LookupError) as error:
            reason = f"no prediction: {error}"
            skipped += [Skipped(run=setup.run, reason=reason) for setup in measured]
            continue
        ran.append(RanScore(group=group, memory=memory))
        if measured:
            mean = GB * statistics.fmean(each.run.measured_memory_gb or 0 for each in measured)
            those = replace(group, setups=measured)
            scores.append(MemoryScore(group=those, memory=memory, measured_bytes=mean))
    return MemoryScores(groups=tuple(scores), skipped=tuple(skipped), ran=tuple(ran))


def predict_memory(setup: Setup) -> StepMemory:
    """The memory of the fullest chip of a set-up."""
    model = StepModel(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        attention=kernel_of(setup),
        software=software_of(setup),
    )
    return step_memory(model, setup.layout, policy_of(setup))


def memory_rows(scores: MemoryScores) -> list[dict[str, object]]:
    """One object a row that publishes its memory, those without a prediction last."""
    rows: list[dict[str, object]] = [
        {
            "id": setup.id,
            "measured_gb": setup.run.measured_memory_gb,
            "predicted_gb": each.predicted_bytes / GB,
            "error": each.predicted_bytes / (GB * (setup.run.measured_memory_gb or 1)) - 1,
            "group": each.group.id,
            "measure": each.measure,
            "usable_gb": each.memory.usable / GB,
            "stage": each.memory.stage,
            "terms_gb": {term: getattr(each.memory, term) / GB for term in TERMS},
            "host_gb": each.memory.host / GB,
            "reason": each.reason,
            "skipped": None,
        }
        for each in scores.groups
        for setup in each.group.setups
    ]
    blank = dict.fromkeys(rows[0] if rows else ("id", "skipped"))
    return [*rows, *({**blank, "id": row.id, "skipped": row.reason} for row in scores.skipped)]


def _reasons(score: MemoryScore) -> Iterator[str]:
    """Stated rules, the most telling first."""
    setup, run = score.setup, score.setup.run
    published = [each.run.measured_memory_gb or 0 for each in score.group.setups]
    if max(published) / min(published) > 1 + GOAL:
        yield f"its measurements differ: {min(published):g} to {max(published):g} GB"
    if not run.remat_policy:
        narrow = ", and 8-bit tensors counted in two bytes" if setup.formats.compute == "f8" else ""
        yield f"remat not published: none taken{narrow}"
    if "zero stage 0" in run.notes.lower():
        yield "without ZeRO: temporaries of the optimizer's step are not counted"
    if setup.remat.offloaded:
        yield "offloads activations: what the compiler keeps of them on chip is not published"
    if setup.layout.stage > 1 and setup.software == "torch":
        yield "FSDP in a pipeline: how long gathered weights stay is the allocator's choice"
    if not setup.remat.exact:
        yield f"remat {setup.remat.raw[:32]!r} approximated"
    yield from setup.remarks
