"""One batch of token rows: what a step reads."""

from dataclasses import dataclass

import jax
import numpy as np

type Ints = jax.Array | np.ndarray[tuple[int, ...], np.dtype[np.int32]]
type Floats = jax.Array | np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of packed documents; every leaf is [B, T].

    Attributes:
        tokens: int32 ids that the model reads.
        targets: int32 ids that it is to predict, the next token of the same document.
        positions: int32, from 0 within each document.
        segments: int32, the document's number within its row, from 1; 0 is padding.
        weights: float32, 1 where the loss counts and 0 where there is nothing to predict.
    """

    tokens: Ints
    targets: Ints
    positions: Ints
    segments: Ints
    weights: Floats
