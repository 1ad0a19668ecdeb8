"""Attention on any device without holding all scores: block by block, empty blocks left out.

Letters: B sequences, T tokens, N query heads, K KV heads, H head_dim.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from muster.training.attention.masking import Masking, token_order
from muster.training.attention.pairs import Blocks, Places, Tokens, attend_pairs

type Pairs = np.ndarray[tuple[int, int], np.dtype[np.int32]]

# Such a block's scores stay in a CPU's cache. Of 64 to 1024, 128 was fastest for 8 x 256 tokens of
# 4 heads of 64 and 256 for 1 x 2048, in bfloat16 (11 and 55 ms forward and backward, where the
# reference took 18 and 421); in float32 they were within a tenth of the fastest.
LARGEST_BLOCK = 256


def attend(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    *,
    mask: Masking,
    scale: float,
    block: int | None = None,
) -> jax.Array:
    """Attention [B, T, N, H] in q's dtype; query head n reads KV head n // G.

    Where tokens lie in order, only blocks that hold visible keys are computed: the lower triangle,
    or a band of it.

    Args:
        q_BTNH: queries.
        k_BSKH: keys of the same tokens.
        v_BSKH: values of the same tokens.
        mask: documents, order and window.
        scale: of the scores.
        block: tokens of a block at most, the largest divisor of T up to it being used; by default
            half of the row, and at most `LARGEST_BLOCK`.
    """
    T = q_BTNH.shape[1]
    size = block_size(T, block or min(LARGEST_BLOCK, -(-T // 2)))
    n = T // size
    if mask.order is None:
        pairs = causal_pairs(n, size, mask.window)
    else:
        pairs = np.asarray(list(product(range(n), repeat=2)), np.int32)
    tokens = Tokens(jnp.asarray(mask.segments), token_order(mask))
    places = Places(tokens, tokens, jnp.asarray(pairs[:, 0]), jnp.asarray(pairs[:, 1]))
    blocks = Blocks(queries=size, keys=size, window=mask.window, scale=scale)
    return attend_pairs(q_BTNH, k_BSKH, v_BSKH, places, blocks)


def block_size(tokens: int, most: int) -> int:
    """The largest divisor of a number of tokens that is at most `most`.

    >>> block_size(2048, 512), block_size(1000, 512), block_size(256, 512)
    (512, 500, 256)
    """
    return next(size for size in range(min(tokens, most), 0, -1) if tokens % size == 0)


def causal_pairs(blocks: int, size: int, window: int | None) -> Pairs:
    """Pairs (query block, key block) that hold visible keys, [P, 2], tokens lying in order.

    >>> causal_pairs(3, 4, None).tolist()
    [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    >>> causal_pairs(3, 4, 5).tolist()
    [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2]]
    """
    return np.asarray(
        [
            (i, j)
            for i in range(blocks)
            for j in range(i + 1)
            # The nearest pair of tokens: the block's first query and the keys' last.
            if window is None or i * size - (j * size + size - 1) < window
        ],
        np.int32,
    )
