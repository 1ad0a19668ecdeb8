"""Activations times weights, with the weights' gradient in the form that a device is quick with.

    y = x W      dW = x^T dy
    y = x W^T    dW = dy^T x

XLA for CPUs fuses the transpose of the left factor into whatever made it, element by element and
against the order of memory, or leaves the matmul to a slow fallback (bfloat16 on two cores: 10 of
200 GFLOP/s). So there the left factor is transposed apart, and written before it is multiplied.

On a torus the gradient is multiplied in the parts in which it is scattered: cut behind the matmul,
it would be copied. And a matrix is laid out rows first, as the scatter sends it: without that word
the compiler chose columns for LLaMA-3 70B's `down` on v6e, and copied it (210 of 3,210 ms). Not on
chips whose compiler does better untold (`CompilerTarget.rows_first`).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.lax import optimization_barrier

from muster.training.partition import MATRIX, Partition
from muster.training.parts import ranges

# An equation such as "btd,dnh->btnh" or "ecd,edf->ecf", activations and a weight. The dims that the
# activations share with the weight alone are summed over, and lead the weight's own or end them.
type Einsum = Callable[[str, jax.Array, jax.Array], jax.Array]


def einsum_on(place: Partition) -> Einsum:
    """How this mesh's devices multiply activations of one chip by a weight.

    Where nothing is to be done it is JAX's own, so that operations are named after the caller.
    """
    if place.on_cpu:
        return partial(_einsum, _turned)
    if not place.pieces:
        return jnp.einsum

    def einsum(equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
        rows_first = place.rows_first and weight.ndim == MATRIX
        in_parts = partial(_in_parts, place.parts(weight.shape), rows_first)
        return _einsum(in_parts, equation, x, weight)

    return einsum


ROWS_FIRST = Layout(major_to_minor=(0, 1))

# left, right, the dims of both and of the weight: left^T right
type _Gradient = Callable[[jax.Array, jax.Array, str, str, str], jax.Array]


def _turned(left: jax.Array, right: jax.Array, of_left: str, of_right: str, of: str) -> jax.Array:
    tokens = [letter for letter in of_left if letter in of_right and letter not in of]
    turned = "".join([*(letter for letter in of_left if letter not in tokens), *tokens])
    across = optimization_barrier(jnp.einsum(f"{of_left}->{turned}", left))
    return jnp.einsum(f"{turned},{of_right}->{of}", across, right)


def _in_parts(
    widths: tuple[int, ...],
    rows_first: bool,
    left: jax.Array,
    right: jax.Array,
    of_left: str,
    of_right: str,
    of: str,
) -> jax.Array:
    columns = (right[..., part] for part in ranges(widths))
    products = [jnp.einsum(f"{of_left},{of_right}->{of}", left, part) for part in columns]
    if rows_first:
        products = [with_layout_constraint(part, ROWS_FIRST) for part in products]
    return jnp.concatenate(products, axis=-1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _einsum(gradient: _Gradient, equation: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    del gradient
    return jnp.einsum(equation, x, weight)


def _forward(
    gradient: _Gradient, equation: str, x: jax.Array, weight: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _einsum(gradient, equation, x, weight), (x, weight)


def _backward(
    gradient: _Gradient, equation: str, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    factors, of_y = equation.split("->")
    of_x, of = factors.split(",")
    dx = jnp.einsum(f"{of_y},{of}->{of_x}", dy, weight)
    # The weight's first dim, after any that all three share, says whose transpose stands left.
    rows = next(letter for letter in of if not (letter in of_x and letter in of_y))
    if rows in of_x:
        return dx, gradient(x, dy, of_x, of_y, of)
    return dx, gradient(dy, x, of_y, of_x, of)


_einsum.defvjp(_forward, _backward)
