"""What one training run works on: sizes and number formats."""

from dataclasses import dataclass
from typing import Literal

from muster.roofline.memory import Optimizer


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training run's sizes and formats.

    Attributes:
        sequence_length: T, tokens of one sequence.
        batch_sequences: sequences of one global batch.
        train_tokens: tokens of the whole run; None where it was not said.
        remat: the recomputation policy; None until the planner has chosen one.
    """

    sequence_length: int
    batch_sequences: int
    train_tokens: int | None = None
    param_dtype: str = "bf16"
    compute_dtype: str = "bf16"
    optimizer: Optimizer = "adamw"
    optimizer_dtype: str = "f32"
    remat: str | None = None
    attention: Literal["causal"] = "causal"
    warnings: tuple[str, ...] = ()

    @property
    def batch_tokens(self) -> int:
        """B: tokens of one global batch."""
        return self.batch_sequences * self.sequence_length

    @property
    def steps(self) -> float | None:
        """Optimizer steps of the whole run."""
        return None if self.train_tokens is None else self.train_tokens / self.batch_tokens
