"""What a run tells whoever watches it; how that looks is the watcher's affair."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One finished step.

    Attributes:
        step: from 1.
        of: steps of the whole run.
        loss: mean cross-entropy, natural logarithm.
        tokens_per_second: of all devices together.
        step_seconds: from the end of the step before to the end of this one.
        mfu: in the plan's convention, 6N.
        learning_rate: of this step.
        grad_norm: before clipping.
        accuracy: share of targets that were likeliest.
        balance: the routers' load-balancing loss; 1 is even, 0 without experts.
        dropped: share of expert choices that found no room.
        finite: whether the step changed anything.
        host_seconds: of the step, spent by this process outside of waiting for devices.
    """

    step: int
    of: int
    loss: float
    tokens_per_second: float
    step_seconds: float
    mfu: float
    learning_rate: float
    grad_norm: float
    accuracy: float
    balance: float
    dropped: float
    finite: bool
    host_seconds: float


class Watcher(Protocol):
    """Sees a run as it goes."""

    def begun(self, lines: tuple[str, ...]) -> None:
        """What is about to be trained, and where."""

    def note(self, line: str) -> None:
        """Something that the user should know."""

    def compiled(self, seconds: float) -> None:
        """The step is compiled."""

    def stepped(self, report: StepReport) -> None:
        """A step is done."""

    def saving(self, step: int) -> None:
        """A checkpoint begins to be written."""

    def ended(self, lines: tuple[str, ...]) -> None:
        """The run is over."""
