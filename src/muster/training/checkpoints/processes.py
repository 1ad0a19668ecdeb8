"""What processes of one job tell each other about files, so that all of them do the same."""

import jax
import numpy as np


def gather_texts(text: str) -> list[str]:
    """Every process's text, in the order of processes; all must call it together.

    It is also a barrier: nobody returns before everybody has come.
    """
    if jax.process_count() == 1:
        return [text]
    from jax.experimental import multihost_utils  # noqa: PLC0415 -- only where there are several

    raw = np.frombuffer(text.encode(), np.uint8)
    longest = int(np.max(multihost_utils.process_allgather(np.int32(raw.size))))
    rows = multihost_utils.process_allgather(np.pad(raw, (0, max(longest, 1) - raw.size)))
    return [bytes(row).rstrip(b"\0").decode() for row in np.asarray(rows)]


def from_first(text: str) -> str:
    """The text of process 0, on every process."""
    return gather_texts(text if jax.process_index() == 0 else "")[0]


def first_fault(fault: str) -> str:
    """The first nonempty text of any process, on every process; empty if all are."""
    return next((text for text in gather_texts(fault) if text), "")
