"""The versions of MaxText, JAX and libtpu that compile the published runs' steps.

A published step was compiled by the compiler of its day. Today's writes another program of the same
recipe: it refuses some of its flags, lays out other arrays, overlaps otherwise. So each row is
compiled today and as near to its day as packages reach: MaxText 0.1.0 is the first that PyPI has,
JAX 0.7.2 and libtpu 0.0.23 are of the month of its dependencies, and JAX 0.6.2 with libtpu 0.0.17
the oldest that it runs with. A compiler's day is in what it calls itself, `libtpu_lts_20250612...`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Versions that compile together.

    Attributes:
        day: of the compiler.
        packages: what `pip install` puts in an environment of its own.
        train_compile: MaxText's module that compiles ahead of time.
    """

    day: date
    packages: tuple[str, ...]
    train_compile: str

    @property
    def name(self) -> str:
        """The month of the compiler, by which the page and the command call the stack.

        >>> TODAY.name
        '2026-11'
        """
        return f"{self.day:%Y-%m}"


TODAY = Stack(
    day=date(2026, 11, 5),
    packages=("maxtext[tpu]==0.2.5",),
    train_compile="maxtext.trainers.pre_train.train_compile",
)
_MAXTEXT = ("maxtext==0.1.0", "flax==0.11.2", "qwix==0.1.2")  # the last it imports, unasked
AUTUMN_2025 = Stack(
    day=date(2025, 9, 8),
    packages=(*_MAXTEXT, "jax==0.7.2", "jaxlib==0.7.2", "libtpu==0.0.23"),
    train_compile="MaxText.train_compile",
)
SUMMER_2025 = Stack(
    day=date(2025, 6, 12),
    packages=(*_MAXTEXT, "jax==0.6.2", "jaxlib==0.6.2", "libtpu==0.0.17"),
    train_compile="MaxText.train_compile",
)
STACKS = (TODAY, AUTUMN_2025, SUMMER_2025)


def nearest(day: date, stacks: Sequence[Stack] = STACKS) -> Stack:
    """The stack whose compiler is nearest in time.

    >>> nearest(date(2023, 11, 1)).name, nearest(date(2025, 10, 18)).name
    ('2025-06', '2025-09')
    """
    return min(stacks, key=lambda stack: abs(stack.day - day))
