"""Keeping orbax from printing; what matters it raises, and we tell it in one line."""

import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path

_usual_hook: Callable[["sys.UnraisableHookArgs"], object] | None = None  # what ours came before


def silence_orbax() -> None:
    """Drop orbax's log records, which come by the dozen, and the echoes of its failed reads.

    Where one read or write fails, orbax abandons the others, which then find its event loop
    closed; Python would print a traceback for each of them.
    """
    global _usual_hook
    from absl import logging as absl_logging  # noqa: PLC0415 -- comes with orbax

    logger = absl_logging.get_absl_logger()
    if _not_from_orbax not in logger.filters:
        logger.addFilter(_not_from_orbax)
    if _usual_hook is None:
        _usual_hook, sys.unraisablehook = sys.unraisablehook, _tell_others


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in Path(record.pathname).parts


def _tell_others(unraisable: "sys.UnraisableHookArgs") -> None:
    source = unraisable.object
    abandoned = isinstance(source, types.CoroutineType) and (
        "orbax" in Path(source.cr_code.co_filename).parts
    )
    closed = source is None and str(unraisable.exc_value) == "Event loop is closed"
    if _usual_hook is not None and not (abandoned or closed):
        _usual_hook(unraisable)
