"""What to train on, and how it becomes batches."""

from dataclasses import dataclass
from pathlib import Path

from muster.errors import BadInput

MOST_SEED = 2**32 - 1
# A row of a batch takes a document of its own, whose numbers have 31 bits; the largest batches
# that LLMs are trained with have some 16 thousand sequences, so a million leaves room.
MOST_SEQUENCES = 2**20
# Each of a batch's five arrays takes 4 bytes a token, 1 GiB at this many; the largest batches that
# LLMs are trained with have some 60 million tokens.
MOST_TOKENS = 2**28


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on, and how it becomes batches.

    Attributes:
        paths: text files, .jsonl(.gz, .zst), .parquet, .arrayrecord, datasets saved on disk, and
            folders of them, in any mixture.
        sequence_length: T, tokens of a row.
        batch_sequences: B, rows of the global batch.
        tokenizer: "bytes", or the path of a `tokenizer.json` or of its folder.
        seed: of the shuffle.
        shuffle: visit the documents of each epoch in an order of its own, else in the given order.
        packing: fill rows with several documents; else one document a row, padded or cut to T.
        text_key: the field of JSON lines, Parquet and saved datasets that holds the text.
        epochs: stop after so many; None goes on for ever.
        synthetic: random token ids in the place of `paths`.
    """

    paths: tuple[Path, ...] = ()
    sequence_length: int
    batch_sequences: int
    tokenizer: str = "bytes"
    seed: int = 0
    shuffle: bool = True
    packing: bool = True
    text_key: str = "text"
    epochs: int | None = None
    synthetic: bool = False

    def check(self) -> None:
        """Refuse numbers that make no batch.

        Raises:
            BadInput: one is out of its range.
        """
        if self.sequence_length < 1:
            raise BadInput(f"--seq {self.sequence_length} holds no token; it must be 1 or more")
        if self.batch_sequences < 1:
            raise BadInput(
                f"a batch of {self.batch_sequences} sequences is empty; it must be 1 or more"
            )
        if self.batch_sequences > MOST_SEQUENCES:
            raise BadInput(
                f"a batch of {self.batch_sequences:,} sequences is too large; at most"
                f" {MOST_SEQUENCES:,} are read"
            )
        if self.batch_sequences * self.sequence_length > MOST_TOKENS:
            raise BadInput(
                f"a batch of {self.batch_sequences:,} sequences of {self.sequence_length:,} tokens"
                f" is too large; at most {MOST_TOKENS:,} tokens are read at once"
            )
        if not 0 <= self.seed <= MOST_SEED:
            raise BadInput(f"--seed {self.seed} is not between 0 and {MOST_SEED}")
        if self.epochs is not None and self.epochs < 1:
            raise BadInput(f"--epochs {self.epochs} trains on nothing; it must be 1 or more")
