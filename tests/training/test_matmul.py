"""Weights' gradients on CPUs, against those of the plain einsum."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.sharding.mesh import Layout
from muster.sharding.torus import Piece
from muster.training.matmul import _einsum, _in_parts, einsum_on
from muster.training.mesh import make_mesh
from muster.training.partition import Partition
from tests.training import tiny

# An equation, and the shapes of activations and weight.
CASES = {
    "queries": ("btd,dnh->btnh", (2, 48, 32), (32, 4, 8)),
    "output of attention": ("btnh,dnh->btd", (2, 48, 4, 8), (24, 4, 8)),
    "gate": ("btd,df->btf", (2, 48, 32), (32, 80)),
    "down": ("btf,df->btd", (2, 48, 80), (32, 80)),
    "experts' gate": ("ecd,edf->ecf", (3, 48, 32), (3, 32, 80)),
    "experts' down": ("ecf,efd->ecd", (3, 48, 80), (3, 80, 32)),
}


def one_cpu() -> Partition:
    layout = Layout()
    return Partition(mesh=make_mesh(layout), layout=layout)


def drawn(case: str, dtype: Any = jnp.float32) -> tuple[str, jax.Array, jax.Array]:
    equation, *shapes = CASES[case]
    x, weight = (
        jax.random.normal(jax.random.key(index), shape).astype(dtype)
        for index, shape in enumerate(shapes)
    )
    return equation, x, weight


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_einsum(case: str) -> None:
    equation, x, weight = drawn(case)
    y, back = jax.vjp(partial(einsum_on(one_cpu()), equation), x, weight)
    expected_y, expected_back = jax.vjp(partial(jnp.einsum, equation), x, weight)
    np.testing.assert_array_equal(y, expected_y)
    dy = jax.random.normal(jax.random.key(2), y.shape)
    for got, expected in zip(back(dy), expected_back(dy), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_no_left_factor_is_summed_over_its_rows(case: str, dtype: Any) -> None:
    """What XLA for CPUs multiplies slowly: a left factor that it would have to transpose."""
    equation, x, weight = drawn(case, dtype)

    def loss(x: jax.Array, weight: jax.Array) -> jax.Array:
        y = einsum_on(one_cpu())(equation, jnp.sin(x), weight)
        return jnp.sum(jnp.square(y.astype(jnp.float32)))

    text = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(x, weight).compile().as_text() or ""
    dots = re.findall(r" dot\(.*?lhs_contracting_dims=\{(\d+)\}", text)
    batched = equation.startswith("e")
    assert len(dots) == 3
    assert set(dots) == {"2" if batched else "1"}


def last_operation(function: Callable[[jax.Array], jax.Array], x: Any) -> str:
    """That which gives the result."""
    traced = jax.make_jaxpr(function)(x).jaxpr
    (result,) = traced.outvars
    return str(next(line.primitive for line in traced.eqns if result in line.outvars))


@pytest.mark.parametrize("case", [case for case in CASES if "experts" not in case])
def test_on_a_torus_a_matrix_is_laid_out_as_it_is_scattered(case: str) -> None:
    """Rows first, and nothing between the matmul and that."""
    equation, x, weight = drawn(case)
    layout = Layout()
    torus = {"fsdp": (Piece(0, 1, 1, 1),)}
    place = tiny.AsTpus(mesh=make_mesh(layout), layout=layout, pieces=torus)

    def gradient_on(place: Partition) -> Callable[[jax.Array], jax.Array]:
        def gradient(dy: jax.Array) -> jax.Array:
            _, back = jax.vjp(partial(einsum_on(place), equation), x, weight)
            return back(dy)[1]

        return gradient

    y = jax.eval_shape(partial(jnp.einsum, equation), x, weight)
    made = last_operation(gradient_on(place), y)
    assert made == ("layout_constraint" if weight.ndim == 2 else "dot_general")
    untold = replace(place, rows_first=False)
    assert last_operation(gradient_on(untold), y) == "dot_general"
    dy = jax.random.normal(jax.random.key(2), y.shape)
    expected = jax.vjp(partial(jnp.einsum, equation), x, weight)[1](dy)[1]
    np.testing.assert_allclose(gradient_on(place)(dy), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["gate", "down"])
def test_a_gradient_in_parts_is_the_same(case: str) -> None:
    equation, x, weight = drawn(case)
    _, back = jax.vjp(partial(_einsum, partial(_in_parts, (48, 32), False), equation), x, weight)
    _, expected_back = jax.vjp(partial(jnp.einsum, equation), x, weight)
    dy = jax.random.normal(jax.random.key(2), jnp.einsum(equation, x, weight).shape)
    for got, expected in zip(back(dy), expected_back(dy), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
