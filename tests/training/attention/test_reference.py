"""The reference against a definition written with loops, and what a token may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.training.attention import Masking, blockwise, reference
from tests.training.attention.cases import SCALE, Attend, inputs, packed

FORMS = pytest.mark.parametrize("attend", [reference.attend, blockwise.attend])


@pytest.mark.parametrize("window", [None, 5])
def test_equals_the_definition(window: int | None) -> None:
    q, k, v, _ = (np.asarray(x, np.float64) for x in inputs(2, 12, 4, 2, 3))
    segments = np.asarray(packed(2, 12))
    want = np.zeros(q.shape)
    for b in range(2):
        for t in range(12):
            sees = [
                s
                for s in range(t + 1)
                if segments[b, s] == segments[b, t] and (window is None or t - s < window)
            ]
            for n in range(4):
                weights = np.exp(SCALE * k[b, sees, n // 2] @ q[b, t, n])
                want[b, t, n] = weights @ v[b, sees, n // 2] / weights.sum()
    mask = Masking(segments=jnp.asarray(segments), window=window)
    got = reference.attend(*inputs(2, 12, 4, 2, 3)[:3], mask=mask, scale=SCALE)
    np.testing.assert_allclose(got, want, atol=1e-6)


@FORMS
def test_no_gradient_from_the_future_nor_from_another_document(attend: Attend) -> None:
    q, k, v, _ = inputs(1, 32, 2, 1, 4)
    segments = jnp.asarray([[1] * 10 + [2] * 12 + [0] * 10])
    mask = Masking(segments=segments, window=6)

    def one(t: int, kv: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.sum(attend(q, *kv, mask=mask, scale=SCALE)[0, t] ** 2)

    for t in (0, 9, 10, 18, 21):
        for gradient in jax.grad(one, argnums=1)(t, (k, v)):
            first = max(0 if t < 10 else 10, t - 5)
            by_token = np.abs(np.asarray(gradient[0])).sum((1, 2))
            reached = np.flatnonzero(by_token)
            # A key that is alone has no gradient through the softmax, but its value has.
            assert reached.size == 0 or (reached[0], reached[-1]) == (first, t)
            if gradient is not None and first < t:
                assert reached.size == t - first + 1


@FORMS
def test_explicit_order_permutes_the_answer(attend: Attend) -> None:
    arrays = inputs(2, 24, 4, 2, 4)
    segments = packed(2, 24)
    order = np.random.default_rng(1).permutation(24).astype(np.int32)
    natural = attend(*arrays[:3], mask=Masking(segments=segments, window=7), scale=SCALE)
    mask = Masking(segments=segments[:, order], order=jnp.asarray(order), window=7)
    permuted = attend(*(x[:, order] for x in arrays[:3]), mask=mask, scale=SCALE)
    np.testing.assert_allclose(permuted, natural[:, order], atol=1e-6)
