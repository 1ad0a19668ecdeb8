"""Signals that end a command that asks the compiler: children end, and files are written."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

# Ctrl-C, a scheduler's or timeout's, and that of a terminal which is closed.
ENDING = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

type Handler = Callable[[int, FrameType | None], None]


@contextmanager
def ended_once() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; those that follow do not disturb the clean-up."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        del number, frame
        if not came:
            came = True
            raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """No signal ends what is short and must be whole."""

    def wait(number: int, frame: FrameType | None) -> None:
        del number, frame

    with _handled(wait):
        yield


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Signals go to a handler, but for those that the caller has this process ignore (nohup)."""
    if current_thread() is not main_thread():  # only the main one may set handlers
        yield
        return
    before = {
        each: signal.signal(each, handler)
        for each in ENDING
        if signal.getsignal(each) not in {signal.SIG_IGN, None}
    }
    try:
        yield
    finally:
        for each, held in before.items():
            signal.signal(each, held)
