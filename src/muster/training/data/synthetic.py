"""Documents of random token ids, for benchmarks."""

import numpy as np

from muster.training.data.documents import Document

DOCUMENTS = 2**31  # more than any benchmark reads


class Synthetic:
    """Documents of `length` ids, uniform below `vocab_size`; each follows from seed and number."""

    def __init__(self, *, length: int, vocab_size: int, seed: int) -> None:
        """Make nothing yet; documents are made when they are asked for."""
        self._length = length
        self._vocab_size = vocab_size
        self._seed = seed

    def __len__(self) -> int:
        return DOCUMENTS

    def __getitem__(self, index: int) -> Document:
        random = np.random.default_rng([self._seed, index])
        return Document(
            content=random.integers(self._vocab_size, size=self._length, dtype=np.int32)
        )

    def where(self, index: int) -> str:
        """The document's number, which is all there is of it."""
        return f"synthetic document {index}"
