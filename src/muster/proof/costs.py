"""What runs when in one step, and what it takes."""

from dataclasses import dataclass

from muster.proof.hlo.collectives import Collective

MAIN, COPIES, SPARSE = "TensorCore", "copies", "SparseCore"
TO_HOST, FROM_HOST = "to the host", "from the host"
COMPUTE, KERNEL, COLLECTIVE, COPY, GUESSED = "compute", "kernel", "collective", "copy", "guessed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that runs on a track, from a begin on; seconds.

    Attributes:
        wait: whether the track does nothing but wait for another.
    """

    name: str
    label: str
    kind: str
    track: str
    begin: float
    seconds: float
    wait: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What an operation, or several of one label, takes in one step.

    Attributes:
        count: how often it runs.
        seconds: that it is busy, wherever.
        exposed: of the main core's time: its own, or that it waits for.
        collective: what it exchanges, for a collective.
    """

    name: str
    label: str
    kind: str
    count: int
    seconds: float
    exposed: float
    collective: Collective | None = None
