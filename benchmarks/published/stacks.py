"""The versions of MaxText, JAX and libtpu that compile the published runs' steps.

A published step was compiled by the compiler of its day. Today's writes another program of the same
recipe: it refuses some of its flags, lays out other arrays, overlaps otherwise. So each row is
compiled twice, today and as near to its day as packages reach: MaxText 0.1.0 is the first that PyPI
has, and JAX 0.7.2 with libtpu 0.0.23 are of the month of its dependencies, September 2025 (that
libtpu calls itself `libtpu_lts_20250908_a_RC01`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Versions that compile together.

    Attributes:
        name: what the page calls it; of MaxText.
        folder: of its programs, in the one that is given.
        packages: what `pip install` puts in an environment of its own.
        train_compile: MaxText's module that compiles ahead of time.
    """

    name: str
    folder: str
    packages: tuple[str, ...]
    train_compile: str


TODAY = Stack(
    name="0.2.5",
    folder="",
    packages=("maxtext[tpu]==0.2.5",),
    train_compile="maxtext.trainers.pre_train.train_compile",
)
EARLIER = Stack(
    name="0.1.0",
    folder="earlier",
    packages=(
        *("maxtext==0.1.0", "jax==0.7.2", "jaxlib==0.7.2", "libtpu==0.0.23", "flax==0.11.2"),
        "qwix==0.1.2",  # which it imports and does not name
    ),
    train_compile="MaxText.train_compile",
)
STACKS = (TODAY, EARLIER)
