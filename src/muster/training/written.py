"""Gradients that are written to memory once, not computed anew inside each matmul that reads them.

XLA fuses what stands before a matmul into it, and computes it again for every tile of the output.
Of an activation function's derivative, read by two matmuls, that cost more than writing it where a
fusion had 16 MiB of vector memory; with 64 MiB it made no difference to LLaMA-3 8B on v5p
(docs/tuning-log.md has both). XLA for CPUs never fuses into matmuls.
"""

import jax
from jax.lax import optimization_barrier

from muster.training.partition import Partition


def gradient_written(x: jax.Array, place: Partition) -> jax.Array:
    """The same, its gradient written once."""
    return x if place.on_cpu else _written(x)


@jax.custom_vjp
def _written(x: jax.Array) -> jax.Array:
    return x


def _forward(x: jax.Array) -> tuple[jax.Array, None]:
    return x, None


def _backward(_saved: None, dx: jax.Array) -> tuple[jax.Array]:
    written: jax.Array = optimization_barrier(dx)
    return (written,)


_written.defvjp(_forward, _backward)
