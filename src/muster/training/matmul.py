"""Activations times weights; on CPUs, with the weights' gradient in the form they multiply well.

    y = x W      dW = x^T dy
    y = x W^T    dW = dy^T x

XLA for CPUs fuses the transpose of the left factor into whatever made it, element by element and
against the order of memory, or leaves the matmul to a slow fallback (bfloat16 on two cores: 10 of
200 GFLOP/s). So there the left factor is transposed apart, and written before it is multiplied.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier

from muster.training.partition import Partition

# An equation such as "btd,dnh->btnh" or "ecd,edf->ecf", activations and a weight. The dims that the
# activations share with the weight alone are summed over, and lead the weight's own or end them.
type Einsum = Callable[[str, jax.Array, jax.Array], jax.Array]


def einsum_on(place: Partition) -> Einsum:
    """How this mesh's devices multiply activations of one chip by a weight.

    Elsewhere than on CPUs it is JAX's own, so that compiled operations are named after the caller.
    """
    return _einsum if place.on_cpu else jnp.einsum


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _einsum(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, weight)


def _forward(
    equation: str, x: jax.Array, weight: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _einsum(equation, x, weight), (x, weight)


def _backward(
    equation: str, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    factors, of_y = equation.split("->")
    of_x, of_weight = factors.split(",")
    dx = jnp.einsum(f"{of_y},{of_weight}->{of_x}", dy, weight)

    # The weight's first dim, after any that all three share, says whose transpose stands left.
    rows = next(letter for letter in of_weight if not (letter in of_x and letter in of_y))
    left, right = ((x, of_x), (dy, of_y)) if rows in of_x else ((dy, of_y), (x, of_x))
    tokens = [letter for letter in of_x if letter not in of_weight]
    turned = "".join([*(letter for letter in left[1] if letter not in tokens), *tokens])
    across = optimization_barrier(jnp.einsum(f"{left[1]}->{turned}", left[0]))
    return dx, jnp.einsum(f"{turned},{right[1]}->{of_weight}", across, right[0])


_einsum.defvjp(_forward, _backward)
