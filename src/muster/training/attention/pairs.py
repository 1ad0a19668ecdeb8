"""Attention over a list of pairs (block of queries, block of keys), one pair at a time.

The list says what is computed at all: the lower triangle of blocks, a band of it, or the pairs that
fall to one chip of several. The forward pass keeps a running maximum m and sum l for every query,

    m' = max(m, max_s x_s)
    l' = e^(m - m') l + sum_s e^(x_s - m')
    o' = e^(m - m') o + sum_s e^(x_s - m') v_s

and hands o / l and the log-sum-exp m + log l to the backward pass, which computes the scores again:

    p = e^(x - lse),   dv = p^T do
    dp = do v^T,       dx = p (dp - do . o),   dq = scale dx k,   dk = scale dx^T q

(Dao, FlashAttention-2, 2023.) Beside inputs and outputs, a block's scores are all that is held.

Letters: B sequences, K KV heads, G query heads of each, H head_dim, T tokens of a query block, S of
a key block; n and m numbers of blocks.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from muster.training.attention.masking import visible
from muster.training.recompute import MIXING, named

# Below any score, and still finite: a row that has seen nothing yet stays free of NaN.
LOWEST = -1e30


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What is static about one attention.

    Attributes:
        queries: tokens of a block of queries.
        keys: tokens of a block of keys.
        window: tokens that a token sees, or None for all before it.
        scale: of the scores.
    """

    queries: int
    keys: int
    window: int | None
    scale: float


class Tokens(NamedTuple):
    """Of queries or of keys: their documents [B, T] and their order [T]."""

    segments: jax.Array
    order: jax.Array


class Places(NamedTuple):
    """Who the queries and the keys are, and which pairs of blocks to compute, two int32 [P]."""

    queries: Tokens
    keys: Tokens
    query_blocks: jax.Array
    key_blocks: jax.Array


def attend_pairs(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, places: Places, blocks: Blocks
) -> jax.Array:
    """Attention [B, T, N, H] of which only the listed pairs of blocks are computed.

    Every pair that holds visible keys must be listed once. Block sizes divide T and S.
    """
    B, T, N, H = q_BTNH.shape
    S, K = k_BSKH.shape[1:3]
    n, m = T // blocks.queries, S // blocks.keys
    assert n * blocks.queries == T
    assert m * blocks.keys == S
    q_nBKGTH = q_BTNH.reshape(B, n, blocks.queries, K, N // K, H).transpose(1, 0, 3, 4, 2, 5)
    k_mBKSH = k_BSKH.reshape(B, m, blocks.keys, K, H).transpose(1, 0, 3, 2, 4)
    v_mBKSH = v_BSKH.reshape(B, m, blocks.keys, K, H).transpose(1, 0, 3, 2, 4)
    o_nBKGTH = _attend(blocks, q_nBKGTH, k_mBKSH, v_mBKSH, places)
    return o_nBKGTH.transpose(1, 0, 4, 2, 3, 5).reshape(B, T, N, H)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    blocks: Blocks, q_nBKGTH: jax.Array, k_mBKSH: jax.Array, v_mBKSH: jax.Array, places: Places
) -> jax.Array:
    return _forward(blocks, q_nBKGTH, k_mBKSH, v_mBKSH, places)[0]


type _Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, Places]


def _forward(
    blocks: Blocks, q_nBKGTH: jax.Array, k_mBKSH: jax.Array, v_mBKSH: jax.Array, places: Places
) -> tuple[jax.Array, _Saved]:
    by_block = _by_block(blocks, places)

    def step(
        carry: tuple[jax.Array, jax.Array, jax.Array], pair: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        i, j = pair
        top, total, mixed = carry
        old_top = _at(top, i)
        scores, seen = _scores(blocks, by_block, _at(q_nBKGTH, i), _at(k_mBKSH, j), i, j)
        new_top = jnp.maximum(old_top, jnp.max(jnp.where(seen, scores, LOWEST), axis=-1))
        p_BKGTS = jnp.where(seen, jnp.exp(scores - new_top[..., None]), 0.0)
        shrink = jnp.exp(old_top - new_top)
        new_total = shrink * _at(total, i) + jnp.sum(p_BKGTS, axis=-1)
        of_pair = _matmul("bkgts,bksh->bkgth", p_BKGTS.astype(v_mBKSH.dtype), _at(v_mBKSH, j))
        new_mixed = shrink[..., None] * _at(mixed, i) + of_pair
        return (_put(top, new_top, i), _put(total, new_total, i), _put(mixed, new_mixed, i)), None

    rows = q_nBKGTH.shape[:-1]
    start = (
        jnp.full(rows, LOWEST, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(q_nBKGTH.shape, jnp.float32),
    )
    (top, total, mixed), _ = lax.scan(step, start, (places.query_blocks, places.key_blocks))
    o = named(MIXING, (mixed / total[..., None]).astype(q_nBKGTH.dtype))
    log_sum_exp = named(MIXING, top + jnp.log(total))
    return o, (q_nBKGTH, k_mBKSH, v_mBKSH, o, log_sum_exp, places)


def _backward(
    blocks: Blocks, saved: _Saved, do_nBKGTH: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_nBKGTH, k_mBKSH, v_mBKSH, o_nBKGTH, log_sum_exp, places = saved
    by_block = _by_block(blocks, places)
    own = jnp.sum(do_nBKGTH.astype(jnp.float32) * o_nBKGTH.astype(jnp.float32), axis=-1)

    def step(
        carry: tuple[jax.Array, jax.Array, jax.Array], pair: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        i, j = pair
        dq, dk, dv = carry
        q_BKGTH, do_BKGTH = _at(q_nBKGTH, i), _at(do_nBKGTH, i)
        k_BKSH, v_BKSH = _at(k_mBKSH, j), _at(v_mBKSH, j)
        scores, seen = _scores(blocks, by_block, q_BKGTH, k_BKSH, i, j)
        p = jnp.where(seen, jnp.exp(scores - _at(log_sum_exp, i)[..., None]), 0.0)
        dp = _matmul("bkgth,bksh->bkgts", do_BKGTH, v_BKSH)
        ds = (p * (dp - _at(own, i)[..., None]) * blocks.scale).astype(q_BKGTH.dtype)
        p = p.astype(do_BKGTH.dtype)
        dq = _put(dq, _at(dq, i) + _matmul("bkgts,bksh->bkgth", ds, k_BKSH), i)
        dk = _put(dk, _at(dk, j) + _matmul("bkgts,bkgth->bksh", ds, q_BKGTH), j)
        dv = _put(dv, _at(dv, j) + _matmul("bkgts,bkgth->bksh", p, do_BKGTH), j)
        return (dq, dk, dv), None

    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (q_nBKGTH, k_mBKSH, v_mBKSH))
    pairs = (places.query_blocks, places.key_blocks)
    (dq, dk, dv), _ = lax.scan(step, (dq, dk, dv), pairs)
    return dq.astype(q_nBKGTH.dtype), dk.astype(k_mBKSH.dtype), dv.astype(v_mBKSH.dtype), None


_attend.defvjp(_forward, _backward)


def _by_block(blocks: Blocks, places: Places) -> tuple[Tokens, Tokens]:
    """Documents [n, B, T] and order [n, T] of queries, and of keys."""

    def split(tokens: Tokens, size: int) -> Tokens:
        B = tokens.segments.shape[0]
        segments = tokens.segments.reshape(B, -1, size).swapaxes(0, 1)
        return Tokens(segments, tokens.order.reshape(-1, size))

    return split(places.queries, blocks.queries), split(places.keys, blocks.keys)


def _scores(
    blocks: Blocks,
    by_block: tuple[Tokens, Tokens],
    q_BKGTH: jax.Array,
    k_BKSH: jax.Array,
    i: jax.Array,
    j: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Scaled scores [B, K, G, T, S] of a pair, and which of them count [B, 1, 1, T, S]."""
    queries, keys = by_block
    seen_BTS = visible(
        _at(queries.segments, i),
        _at(keys.segments, j),
        _at(queries.order, i),
        _at(keys.order, j),
        blocks.window,
    )
    return blocks.scale * _matmul("bkgth,bksh->bkgts", q_BKGTH, k_BKSH), seen_BTS[:, None, None]


def _at(whole: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(whole, index, keepdims=False)


def _put(whole: jax.Array, part: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(whole, part, index, axis=0)


def _matmul(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
