"""When to stop early: a preemption (SIGTERM) or Ctrl-C, agreed upon by all processes of a job."""

import signal
from types import FrameType, TracebackType
from typing import Self

import jax
from jax.experimental import multihost_utils


class StopRequests:
    """Notices signals from before the step is compiled until the last save is on disk.

    The second Ctrl-C interrupts at once; a second SIGTERM changes nothing, for the first is being
    obeyed. With several processes JAX's preemption service hears SIGTERM, and all of them agree on
    the step to stop at; a single process notices it by itself.

    Attributes:
        name: of the signal that was seen, or None.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        mine = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGTERM, signal.SIGINT)
        for number in mine:
            self._before[number] = signal.signal(number, self._seen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wanted(self, step: int) -> bool:
        """Whether to stop behind this step; every process asks at every step."""
        if jax.process_count() > 1:
            if multihost_utils.reached_preemption_sync_point(step):
                self.name = self.name or "SIGTERM"
                return True
            return False
        return self.name is not None

    def _seen(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.name == "SIGINT" and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
