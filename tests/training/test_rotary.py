"""Rotary embedding in both forms, against complex numbers and against each other."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.sharding.mesh import Layout
from muster.training.mesh import make_mesh
from muster.training.partition import Partition
from muster.training.rotary import Angles, rotate
from tests.training import tiny

SHAPE = (2, 48, 3, 16)  # B, T, N, H


def places() -> list[Partition]:
    layout = Layout()
    return [kind(mesh=make_mesh(layout), layout=layout) for kind in (Partition, tiny.AsTpus)]


def drawn_angles() -> Angles:
    B, T, _, H = SHAPE
    angles = 100 * jax.random.uniform(jax.random.key(0), (B, T, 1, H // 2))
    return jnp.cos(angles), jnp.sin(angles)


def drawn(seed: int, dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), SHAPE).astype(dtype)


@pytest.mark.parametrize("number", [0, 1])
def test_pairs_turn_as_complex_numbers_do(number: int) -> None:
    x, (cos, sin) = np.asarray(drawn(1)), drawn_angles()
    half = SHAPE[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * (np.asarray(cos) + 1j * np.asarray(sin))
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    found = rotate(jnp.asarray(x), (cos, sin), places()[number])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_both_forms_round_alike_there_and_back(dtype: Any) -> None:
    angles, x, dy = drawn_angles(), drawn(1, dtype), drawn(2, dtype)
    (y, back), (expected_y, expected_back) = (
        jax.vjp(partial(rotate, angles=angles, place=place), x) for place in reversed(places())
    )
    assert y.dtype == expected_y.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 2**-8
    pairs = ((y, expected_y), (back(dy)[0], expected_back(dy)[0]))
    for found, expected in pairs:
        one, other = np.asarray(found, np.float32), np.asarray(expected, np.float32)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=1e-6)


def test_rotation_keeps_dot_products_of_equal_distances() -> None:
    draw = np.random.default_rng(0)
    q, k = (jnp.asarray(draw.standard_normal((1, 1, 1, 8)), jnp.float32) for _ in range(2))

    def turned(x: jax.Array, position: int) -> jax.Array:
        angles = position * jnp.asarray([1.0, 0.3, 0.1, 0.03])[None, None, None]
        return rotate(x, (jnp.cos(angles), jnp.sin(angles)), places()[0])

    near = jnp.vdot(turned(q, 5), turned(k, 2))
    assert float(jnp.vdot(turned(q, 105), turned(k, 102))) == pytest.approx(float(near), rel=1e-4)
    assert float(jnp.vdot(turned(q, 5), turned(k, 0))) != pytest.approx(float(near), rel=1e-1)
