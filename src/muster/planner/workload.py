"""What is trained on: batch, sequence length, corpus and number formats, checked and made whole."""

from dataclasses import dataclass
from typing import Literal

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.roofline.memory import DTYPE_BYTES
from muster.units import BatchSize, format_count

DEFAULT_SEQUENCE_LENGTH = 4096

type Optimizer = Literal["adamw"]


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


def make_workload(
    architecture: Architecture,
    batch: BatchSize,
    *,
    sequence_length: int | None = None,
    train_tokens: int | None = None,
    param_dtype: str = "bf16",
    optimizer_dtype: str = "f32",
    remat: str | None = None,
) -> Workload:
    """Turn what the user asked for into whole sequences, with a warning for whatever was chosen.

    Raises:
        BadInput: the batch is smaller than one sequence.
    """
    for dtype in (param_dtype, optimizer_dtype):
        if dtype not in DTYPE_BYTES:
            raise BadInput(f"unknown dtype {dtype!r}; choose from {', '.join(DTYPE_BYTES)}")
    warnings: list[str] = []
    length, why = _sequence_length(architecture, sequence_length)
    warnings += [why] if why else []
    sequences, cut = _whole_sequences(batch, length)
    warnings += [cut] if cut else []
    return Workload(
        sequence_length=length,
        batch_sequences=sequences,
        train_tokens=train_tokens,
        param_dtype=param_dtype,
        optimizer_dtype=optimizer_dtype,
        remat=remat,
        warnings=tuple(warnings),
    )


def _sequence_length(architecture: Architecture, asked: int | None) -> tuple[int, str | None]:
    longest = architecture.context_length
    if asked is None:
        length = min(longest or DEFAULT_SEQUENCE_LENGTH, DEFAULT_SEQUENCE_LENGTH)
        return length, f"no --seq was given: planned for sequences of {length:,} tokens"
    if longest is not None and asked > longest:
        return asked, (
            f"sequences of {asked:,} tokens are longer than the {longest:,} positions that "
            f"{architecture.name}'s config declares"
        )
    return asked, None


def _whole_sequences(batch: BatchSize, length: int) -> tuple[int, str | None]:
    if batch.sequences is not None:
        return batch.sequences, None
    assert batch.tokens is not None
    sequences, rest = divmod(batch.tokens, length)
    if not sequences:
        raise BadInput(
            f"a batch of {format_count(batch.tokens)} tokens is smaller than one sequence of "
            f"{format_count(length)}; the smallest batch is 1seq"
        )
    if not rest:
        return sequences, None
    return sequences, (
        f"{format_count(batch.tokens)} tokens are {batch.tokens / length:,.2f} sequences of "
        f"{format_count(length)}; a step takes whole ones, so this plans {sequences:,} sequences = "
        f"{format_count(sequences * length)} tokens (next above: {sequences + 1}seq)"
    )
