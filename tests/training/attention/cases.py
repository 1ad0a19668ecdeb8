"""Inputs, and the reference's answers to them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muster.training.attention import Masking, reference

type Attend = Callable[..., jax.Array]
type Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

SCALE = 0.3
NAMES = ("o", "dq", "dk", "dv")


def inputs(
    B: int, T: int, N: int, K: int, H: int, *, dtype: Any = jnp.float32, seed: int = 0
) -> Inputs:
    """Queries, keys, values and a cotangent of the output."""
    keys = jax.random.split(jax.random.key(seed), 4)
    heads = (N, K, K, N)
    q, k, v, do = (
        jax.random.normal(key, (B, T, n, H)).astype(dtype)
        for key, n in zip(keys, heads, strict=True)
    )
    return q, k, v, do


def packed(B: int, T: int) -> jax.Array:
    """Segments [B, T]: documents of uneven lengths, other ones in every row, then padding."""
    random = np.random.default_rng(0)
    rows = np.zeros((B, T), np.int32)
    for row in rows:
        cuts = np.sort(random.choice(np.arange(1, T), size=4, replace=False))
        for number, (start, end) in enumerate(zip([0, *cuts], cuts, strict=False), start=1):
            row[start:end] = number
    return jnp.asarray(rows)


def one_document(B: int, T: int) -> jax.Array:
    """Segments [B, T] of rows that are a document each."""
    return jnp.ones((B, T), jnp.int32)


def answer(attend: Attend, arrays: Inputs, mask: Masking) -> tuple[jax.Array, ...]:
    """Output and gradients."""
    q, k, v, do = arrays

    def run(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array) -> tuple[jax.Array, ...]:
        o, pullback = jax.vjp(lambda *qkv: attend(*qkv, mask=mask, scale=SCALE), q, k, v)
        return o, *pullback(do)

    return jax.jit(run)(q, k, v, do)


def equals_reference(
    attend: Attend, arrays: Inputs, mask: Masking, *, tolerance: float = 1e-5
) -> None:
    """Output and gradients within a share of the reference's largest element, 1 at least."""
    got = answer(attend, arrays, mask)
    exact = tuple(x.astype(jnp.float32) for x in arrays)
    want = answer(reference.attend, exact, mask)  # type: ignore[arg-type]
    for name, value, expected in zip(NAMES, got, want, strict=True):
        assert np.all(np.isfinite(value)), name
        error = np.abs(np.asarray(value, np.float32) - np.asarray(expected)).max()
        assert error <= tolerance * max(1, np.abs(expected).max()), f"{name}: {error}"
