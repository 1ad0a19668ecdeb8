"""What compiled libraries print by themselves: off standard output, and mostly off the screen."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

# XLA's C++ log: 0 everything, 1 no information, 2 errors alone.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextmanager
def answers_alone() -> Iterator[None]:
    """Keep standard output for what muster prints; what C++ writes there goes to standard error.

    XLA's warnings are hidden unless the user asked for them in its own environment variable.
    """
    os.environ.setdefault(LOG_LEVEL, "2")
    if not isinstance(sys.stdout, TextIOWrapper):  # a test holds it
        yield
        return
    sys.stdout.flush()
    kept, before = os.dup(1), sys.stdout
    os.dup2(2, 1)
    sys.stdout = TextIOWrapper(
        os.fdopen(kept, "wb"), encoding=before.encoding, errors=before.errors, line_buffering=True
    )
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        sys.stdout.close()
        sys.stdout = before
