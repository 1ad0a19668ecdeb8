"""Which token sees which: causal within a document, and within a window where there is one.

    t sees s   where   segment(t) = segment(s),  order(s) <= order(t),  order(t) - order(s) < window

Padding is a document like any other, number 0: its tokens see each other, so that no softmax is
over nothing, and nobody else sees them.

Letters: B sequences, T tokens as queries, S tokens as keys.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from muster.training.batch import Ints


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Masking:
    """What limits attention beside causality.

    Attributes:
        segments: int32 [B, T], the document of each token; 0 is padding.
        order: int32 [T], where in its row each token stands, the same in all rows; None where
            tokens lie in their natural order, and for attention that permutes by itself.
        window: tokens that a token sees, itself among them, or None for all.
    """

    segments: Ints
    order: Ints | None = None
    window: int | None = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        assert self.window is None or self.window > 0


def visible(
    segments_BT: jax.Array,
    segments_BS: jax.Array,
    order_T: jax.Array,
    order_S: jax.Array,
    window: int | None,
) -> jax.Array:
    """Whether query t sees key s: bool [B, T, S]."""
    distance_TS = order_T[:, None] - order_S[None, :]
    near_TS = distance_TS >= 0
    if window is not None:
        near_TS &= distance_TS < window
    return near_TS & (segments_BT[:, :, None] == segments_BS[:, None, :])


def token_order(mask: Masking) -> jax.Array:
    """The order [T] of a mask's tokens, natural unless given."""
    tokens = jnp.shape(mask.segments)[1]
    return jnp.arange(tokens, dtype=jnp.int32) if mask.order is None else jnp.asarray(mask.order)
