"""What cuDNN is given; no GPU runs here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as library

from muster.errors import BadInput
from muster.training.attention import Masking, reference
from muster.training.attention.cudnn import cudnn, document_bounds
from tests.training.attention.cases import SCALE, inputs, packed


def test_bounds_of_documents() -> None:
    bounds = document_bounds(jnp.asarray([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1]]), 4)
    assert bounds.lengths.tolist() == [[2, 3, 1, -1], [6, -1, -1, -1]]
    assert bounds.offsets.tolist() == [[0, 2, 5, 6, -1], [0, 6, -1, -1, -1]]
    assert bounds.numbers.tolist() == [3, 1]


def stand_in(
    q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float, mask_type: object, **given: Any
) -> jax.Array:
    """What cuDNN says that it does with offsets and lengths, by the reference."""
    assert mask_type == library.MaskType.PADDING_CAUSAL
    offsets, lengths_BM = given["q_offsets"], given["q_seqlen"]
    assert given["kv_offsets"] is offsets
    assert given["kv_seqlen"] is lengths_BM
    segments = np.zeros(q.shape[:2], np.int32)
    for row, starts, lengths in zip(segments, offsets, lengths_BM, strict=True):
        for number, (start, length) in enumerate(zip(starts[:-1], lengths, strict=True), start=1):
            if length > 0:
                row[int(start) : int(start + length)] = number
    mask = Masking(segments=segments, window=given["sliding_window_length"])
    return reference.attend(q, k, v, mask=mask, scale=scale)


@pytest.mark.parametrize("window", [None, 5])
def test_packed_rows(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    monkeypatch.setattr(library, "dot_product_attention", stand_in)
    q, k, v, _ = inputs(2, 32, 4, 2, 8, dtype=jnp.bfloat16)
    mask = Masking(segments=packed(2, 32), window=window)
    want = reference.attend(q, k, v, mask=mask, scale=SCALE)
    assert jnp.array_equal(cudnn(8)(q, k, v, mask=mask, scale=SCALE), want)
    too_few = cudnn(4)(q, k, v, mask=mask, scale=SCALE)
    assert jnp.all(jnp.isnan(too_few)), "a row has four documents and padding"


@pytest.mark.parametrize("window", [None, 5])
def test_rows_of_one_document(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    public = jax.nn.dot_product_attention

    def by_xla(*qkv: jax.Array, implementation: str, **how: object) -> jax.Array:
        assert implementation == "cudnn"
        return public(*qkv, implementation="xla", **how)  # type: ignore[call-overload]

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    q, k, v, _ = inputs(2, 32, 4, 2, 8, dtype=jnp.bfloat16)
    segments = jnp.ones((2, 32), jnp.int32).at[1, 20:].set(0)
    mask = Masking(segments=segments, window=window)
    got = cudnn(1)(q, k, v, mask=mask, scale=SCALE)
    want = reference.attend(q, k, v, mask=mask, scale=SCALE)
    real = np.asarray(segments) > 0
    np.testing.assert_allclose(
        np.asarray(got, np.float32)[real], np.asarray(want, np.float32)[real], atol=2**-6
    )
    several = cudnn(1)(q, k, v, mask=Masking(segments=packed(2, 32)), scale=SCALE)
    assert jnp.all(jnp.isnan(several))


def test_what_it_cannot_do_is_said() -> None:
    mask = Masking(segments=jnp.ones((1, 8), jnp.int32))
    with pytest.raises(BadInput, match="takes bfloat16 or float16, not float32"):
        cudnn(1)(*inputs(1, 8, 2, 1, 8)[:3], mask=mask, scale=1.0)
    with pytest.raises(BadInput, match="multiples of 8, not 12"):
        cudnn(1)(*inputs(1, 8, 2, 1, 12, dtype=jnp.bfloat16)[:3], mask=mask, scale=1.0)
