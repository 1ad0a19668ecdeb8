"""Context parallelism: the tokens of a row split over the mesh axis `sequence`.

A row is cut into 2 S chunks for S chips, and chip i holds chunks i and 2 S - 1 - i. Causal
attention makes chunk c read c + 1 chunks of keys, so every chip has 2 S + 1 pairs of chunks to
compute, no more and no less. The host permutes the tokens of a batch by `balanced_order`; targets,
positions, segments and weights go with them, and nothing but attention asks where in its row a
token stands.

Keys and values are gathered from all chips (they are few: K of N heads), scores are not.

Letters: B sequences, T tokens of a chip, S chips along `sequence`, N query heads, K KV heads.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from muster.errors import BadInput
from muster.training.attention.blockwise import LARGEST_BLOCK, block_size
from muster.training.attention.masking import Masking
from muster.training.attention.pairs import Blocks, Places, Tokens, attend_pairs
from muster.training.attention.signature import Attend

AXIS = "sequence"


def balanced_order(tokens: int, ways: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Where in the row the token that lies at each place comes from: `row[order]` is balanced.

    >>> balanced_order(8, 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]

    Raises:
        BadInput: the row cannot be cut into two equal chunks a chip.
    """
    if tokens % (2 * ways):
        raise BadInput(
            f"sequences of {tokens:,} tokens cannot be cut into {2 * ways} equal chunks, two for"
            f" each of the {ways} sequence ways"
        )
    chunks = np.arange(tokens, dtype=np.int32).reshape(2 * ways, -1)
    return np.concatenate([chunks[[chip, 2 * ways - 1 - chip]].reshape(-1) for chip in range(ways)])


def gathered(ways: int, *, block: int = LARGEST_BLOCK) -> Attend:
    """Attention of one chip of several, to be called with every axis manual.

    Args:
        ways: chips along `sequence`, S.
        block: tokens of a block at most; the largest divisor of a chunk up to it is used.
    """

    def attend(
        q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, /, *, mask: Masking, scale: float
    ) -> jax.Array:
        assert mask.order is None, "context parallelism orders tokens by itself"
        chunk = q_BTNH.shape[1] // 2
        size = block_size(chunk, block)
        chip = lax.axis_index(AXIS)
        segments_BT = jnp.asarray(mask.segments)
        order_T = (own_chunks(chip, ways)[:, None] * chunk + jnp.arange(chunk)).reshape(-1)
        pairs_P2 = jnp.asarray(_pairs(ways, chunk, size, mask.window))[chip]
        places = Places(
            queries=Tokens(segments_BT, order_T),
            keys=Tokens(whole_row(segments_BT, ways), jnp.arange(2 * ways * chunk)),
            query_blocks=pairs_P2[:, 0],
            key_blocks=pairs_P2[:, 1],
        )
        blocks = Blocks(queries=size, keys=size, window=mask.window, scale=scale)
        k, v = whole_row(k_BTKH, ways), whole_row(v_BTKH, ways)
        return attend_pairs(q_BTNH, k, v, places, blocks)

    return attend


def own_chunks(chip: jax.Array, ways: int) -> jax.Array:
    """The two chunks that a chip holds."""
    return jnp.stack([chip, 2 * ways - 1 - chip])


def whole_row(x: jax.Array, ways: int) -> jax.Array:
    """What all chips hold of a row [B, T, ...], gathered and in natural order [B, S T, ...]."""
    B, T = x.shape[:2]
    by_chip = lax.all_gather(x.reshape(B, 2, T // 2, *x.shape[2:]), AXIS)  # [S, B, 2, T/2, ...]
    chunks = jnp.concatenate([by_chip[:, :, 0], by_chip[::-1, :, 1]])
    return jnp.moveaxis(chunks, 0, 1).reshape(B, ways * T, *x.shape[2:])


@cache
def _pairs(
    ways: int, chunk: int, size: int, window: int | None
) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """For every chip, its pairs (own query block, key block of the row) that hold visible keys.

    A chip that a window leaves fewer than others repeats one of which nothing is visible: its first
    queries with the last keys of the row.
    """
    blocks = chunk // size
    last = 2 * ways * blocks - 1
    by_chip = []
    for chip in range(ways):
        own = [c * blocks + b for c in (chip, 2 * ways - 1 - chip) for b in range(blocks)]
        by_chip.append(
            [
                (place, key)
                for place, query in enumerate(own)
                for key in range(query + 1)
                if window is None or (query - key - 1) * size + 1 < window
            ]
        )
    most = max(map(len, by_chip))
    return np.asarray([pairs + [(0, last)] * (most - len(pairs)) for pairs in by_chip], np.int32)
