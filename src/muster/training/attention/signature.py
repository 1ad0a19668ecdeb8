"""What all forms of attention have in common: their signature, and the heads that they take.

Letters: B sequences, T tokens, N query heads, K KV heads, H head_dim.
"""

from typing import Protocol

import jax

from muster.errors import BadInput
from muster.training.attention.masking import Masking


class Attend(Protocol):
    """The one signature of attention: queries [B, T, N, H], keys and values [B, T, K, H]."""

    def __call__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, /, *, mask: Masking, scale: float
    ) -> jax.Array:
        """Mixed values [B, T, N, H]."""


def check_heads(query_heads: int, kv_heads: int, tensor: int) -> None:
    """Refuse tensor ways that would leave a chip with parts of several groups of heads.

    Raises:
        BadInput: with the numbers.
    """
    if query_heads % tensor or (kv_heads % tensor and tensor % kv_heads):
        raise BadInput(
            f"{query_heads} query heads on {kv_heads} KV heads cannot be split {tensor} ways: the"
            " ways must divide the query heads, and divide the KV heads or be a multiple of them"
        )
