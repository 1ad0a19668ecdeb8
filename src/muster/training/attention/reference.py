"""Attention as it is defined, with all scores at once: what the other forms are tested against.

    o_t = sum_s softmax_s(scale q_t . k_s) v_s     over the s that t sees

Letters: B sequences, T query tokens, S key tokens, N query heads, K KV heads, G = N/K, H head_dim.
"""

import jax
import jax.numpy as jnp

from muster.training.attention.masking import Masking, token_order, visible


def attend(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, *, mask: Masking, scale: float
) -> jax.Array:
    """Attention [B, T, N, H] in q's dtype; query head n reads KV head n // G.

    It holds B N T S float32 scores, and as many probabilities for the backward pass.
    """
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    segments_BT, order_T = jnp.asarray(mask.segments), token_order(mask)
    visible_BTS = visible(segments_BT, segments_BT, order_T, order_T, mask.window)

    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    scores_BKGTS = jnp.einsum(
        "btkgh,bskh->bkgts", q_BTKGH, k_BSKH, preferred_element_type=jnp.float32
    )
    scores_BKGTS = jnp.where(visible_BTS[:, None, None], scores_BKGTS * scale, -jnp.inf)
    p_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1).astype(v_BSKH.dtype)
    o_BTKGH = jnp.einsum("bkgts,bskh->btkgh", p_BKGTS, v_BSKH, preferred_element_type=jnp.float32)
    return o_BTKGH.astype(q_BTNH.dtype).reshape(B, T, N, H)
