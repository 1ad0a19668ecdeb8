"""Number formats of the training state, and the book's simplified memory of a run.

Source: the book's Part 6, "Counting Parameters and FLOPs". What a step really takes on each chip is
`roofline.step_memory`.

Legend: D d_model, L layers.
"""

import math
from dataclasses import dataclass
from typing import Literal

from muster.errors import UnknownName

type Optimizer = Literal["adamw", "sgd"]

DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8": 1}
MOMENTS = {"adamw": 2, "sgd": 0}


def dtype_bytes(name: str) -> int:
    """Bytes of one number.

    Raises:
        UnknownName: no number format is called so.

    >>> dtype_bytes("bf16"), dtype_bytes("f32")
    (2, 4)
    """
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        raise UnknownName("dtype", name, DTYPE_BYTES) from None


def fewest_chips(total_bytes: float, hbm_bytes: float) -> int:
    """The fewest chips whose memory holds `total_bytes`, split evenly.

    >>> fewest_chips(11.2e12, 96e9)
    117
    """
    return math.ceil(total_bytes / hbm_bytes)


@dataclass(frozen=True, kw_only=True)
class BookMemory:
    """The book's simplified memory of a training run, in bytes."""

    parameters: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The three terms."""
        return self.parameters + self.optimizer + self.activations

    def per_chip(self, chips: int) -> float:
        """Split evenly."""
        return self.total / chips


def book_memory(
    *, parameters: float, D: int, L: int, tokens: float, checkpoints: int = 2
) -> BookMemory:
    """Parameters 2 B each, Adam 8 B each, activations 2 * D * tokens * checkpoints * L.

    Source: the book's Part 6, "Counting Parameters and FLOPs". No gradients and no logits; the
    checkpoints are D-vectors in bf16.

    LLaMA-3 70B with a batch of 4e6 tokens: 11.2 TB on 117 v5p chips.

    >>> memory = book_memory(parameters=70e9, D=8192, L=80, tokens=4e6)
    >>> f"{memory.activations:.3g} {memory.total:.3g}", fewest_chips(memory.total, 96e9)
    ('1.05e+13 1.12e+13', 117)
    """
    return BookMemory(
        parameters=2 * parameters,
        optimizer=8 * parameters,
        activations=2.0 * D * tokens * checkpoints * L,
    )
