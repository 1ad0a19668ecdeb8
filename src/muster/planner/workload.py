"""What the user asked to train on, checked and made whole sequences."""

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.roofline.memory import dtype_bytes
from muster.roofline.workload import Workload
from muster.units import BatchSize, format_count

DEFAULT_SEQUENCE_LENGTH = 4096
NEAR = 0.01  # of a batch: what a training hardly notices
LONGEST_SEQUENCE = 10**9
MOST_SEQUENCES = 10**9


def make_workload(
    architecture: Architecture,
    batch: BatchSize,
    *,
    sequence_length: int | None = None,
    train_tokens: int | None = None,
    param_dtype: str = "bf16",
    optimizer_dtype: str = "f32",
) -> Workload:
    """Turn what the user asked for into whole sequences, with a warning for whatever was chosen.

    Raises:
        BadInput: the batch is smaller than one sequence, or something is beyond all use.
        UnknownName: a number format is not known.
    """
    for dtype in (param_dtype, optimizer_dtype):
        dtype_bytes(dtype)
    warnings: list[str] = []
    length, why = _sequence_length(architecture, sequence_length)
    warnings += [why] if why else []
    sequences, cut = _whole_sequences(batch, length)
    warnings += [cut] if cut else []
    if sequences > MOST_SEQUENCES:
        raise BadInput(
            f"a batch of {sequences:,} sequences is beyond any cluster; the largest is "
            f"{MOST_SEQUENCES:,}"
        )
    warnings += [awkward] if (awkward := _hard_to_divide(sequences)) else []
    if train_tokens is not None and train_tokens < sequences * length:
        warnings.append(
            f"a run of {format_count(train_tokens)} tokens is less than a batch: it takes one step"
        )
    return Workload(
        sequence_length=length,
        batch_sequences=sequences,
        train_tokens=train_tokens,
        param_dtype=param_dtype,
        optimizer_dtype=optimizer_dtype,
        warnings=tuple(warnings),
    )


def _sequence_length(architecture: Architecture, asked: int | None) -> tuple[int, str | None]:
    longest = architecture.context_length
    if asked is not None and asked > LONGEST_SEQUENCE:
        raise BadInput(
            f"sequences of {asked:,} tokens are longer than any model's; the longest is "
            f"{LONGEST_SEQUENCE:,}"
        )
    if asked is None:
        length = min(longest or DEFAULT_SEQUENCE_LENGTH, DEFAULT_SEQUENCE_LENGTH)
        return length, f"no --seq was given: planned for sequences of {length:,} tokens"
    if longest is not None and asked > longest:
        return asked, (
            f"sequences of {asked:,} tokens are longer than the {longest:,} positions that "
            f"{architecture.name}'s config declares"
        )
    return asked, None


def _hard_to_divide(sequences: int) -> str | None:
    """What to say of a number of sequences that few numbers of chips divide, with one that is near.

    >>> _hard_to_divide(1861)
    '1,861 sequences divide over few numbers of chips; 1856seq is near and 64 x 29'
    """
    if sequences % 4 == 0:
        return None
    for ways in (2**power for power in range(sequences.bit_length(), 3, -1)):
        near = round(sequences / ways) * ways
        if near and abs(near - sequences) <= NEAR * sequences:
            return (
                f"{sequences:,} sequences divide over few numbers of chips; {near}seq is near and "
                f"{ways} x {near // ways}"
            )
    return None


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
