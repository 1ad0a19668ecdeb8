"""Gradients that are written to memory once, in the order in which they are read next.

XLA fuses what stands before a matmul into it, and computes it again for every tile of the output.
Of an activation function's derivative, read by two matmuls, that cost more than writing it where a
fusion had 16 MiB of vector memory; with 64 MiB it made no difference to LLaMA-3 8B on v5p
(docs/tuning-log.md has both). XLA for CPUs never fuses into matmuls.

Letters: B sequences, T tokens, N heads, H head_dim.
"""

from collections.abc import Callable
from functools import partial

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.lax import optimization_barrier

from muster.training.partition import Partition

HEADS_FIRST = Layout(major_to_minor=(0, 2, 1, 3))  # of [B, T, N, H]


def gradient_written(x: jax.Array, place: Partition) -> jax.Array:
    """The same, its gradient written once."""
    return x if place.on_cpu else _with_gradient(optimization_barrier, x)


def gradient_heads_first(x_BTNH: jax.Array, place: Partition) -> jax.Array:
    """The same, its gradient laid out head by head, as attention's kernels on TPUs read it.

    Without that word the compiler gave LLaMA-3 70B's in another order on v6e, and copied both it
    and the weight that it is made with: 110 ms of 3 s.
    """
    return _with_gradient(_heads_first, x_BTNH) if place.on_tpu else x_BTNH


def _heads_first(dx_BTNH: jax.Array) -> jax.Array:
    laid_out: jax.Array = with_layout_constraint(dx_BTNH, HEADS_FIRST)
    return laid_out


# To the same numbers: how they are written is all that it changes.
type _Written = Callable[[jax.Array], jax.Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(_written: _Written, x: jax.Array) -> jax.Array:
    return x


def _forward(_written: _Written, x: jax.Array) -> tuple[jax.Array, None]:
    return x, None


def _backward(written: _Written, _saved: None, dx: jax.Array) -> tuple[jax.Array]:
    return (written(dx),)


_with_gradient.defvjp(_forward, _backward)
