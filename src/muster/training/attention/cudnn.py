"""cuDNN's fused attention on NVIDIA GPUs. Not tried on a device: tests see what it is given.

A row of one document goes through JAX's public function. Rows of several go through the function
below it, which takes their lengths and offsets (Hopper or later); how many there can be in a row
must be known when compiling, and a row with more makes the answer NaN rather than wrong.

Letters: B sequences, T tokens, N query heads, K KV heads, H head_dim, M most documents of a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from muster.errors import BadInput
from muster.training.attention.masking import Masking
from muster.training.attention.signature import Attend

DTYPES = ("bfloat16", "float16")
# Of the head_dim, on every generation with fused attention; Hopper takes 256.
LARGEST_HEAD = 128
HEAD_MULTIPLE = 8


class Bounds(NamedTuple):
    """Where the documents of rows lie, int32, -1 where a row has no more of them.

    Attributes:
        lengths: tokens of each, [B, M].
        offsets: first token of each and the end of the last, [B, M + 1].
        numbers: how many a row has, [B], which may be more than M.
    """

    lengths: jax.Array
    offsets: jax.Array
    numbers: jax.Array


def cudnn(documents: int) -> Attend:
    """Attention of one chip that holds whole rows.

    Args:
        documents: most documents of a row, padding counted as one if there are several.
    """

    def attend(
        q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, /, *, mask: Masking, scale: float
    ) -> jax.Array:
        if reason := refusal(q_BTNH.dtype, q_BTNH.shape[-1], in_order=mask.order is None):
            raise BadInput(reason)
        segments_BT = jnp.asarray(mask.segments)
        if documents == 1:
            mixed_BTNH = jax.nn.dot_product_attention(
                q_BTNH,
                k_BTKH,
                v_BTKH,
                scale=scale,
                is_causal=True,
                local_window_size=None if mask.window is None else (mask.window - 1, 0),
                implementation="cudnn",
            )
            # Padding behind the document changes nothing before it; all else counts.
            begins_BT = (jnp.diff(segments_BT, axis=1) != 0) & (segments_BT[:, 1:] != 0)
            numbers_B = 1 + jnp.sum(begins_BT, axis=1)
        else:
            bounds = document_bounds(segments_BT, documents)
            mixed_BTNH = _packed(q_BTNH, k_BTKH, v_BTKH, bounds, mask.window, scale)
            numbers_B = bounds.numbers
        fits = (numbers_B <= documents)[:, None, None, None]
        return jnp.where(fits, mixed_BTNH, jnp.nan)

    return attend


def refusal(dtype: jax.typing.DTypeLike, head_dim: int, *, in_order: bool = True) -> str | None:
    """Why cuDNN cannot take such inputs, or None if it can.

    >>> refusal("float32", 64)
    'cuDNN attention takes bfloat16 or float16, not float32'
    """
    name = jnp.dtype(dtype).name
    if name not in DTYPES:
        return f"cuDNN attention takes {' or '.join(DTYPES)}, not {name}"
    if head_dim % HEAD_MULTIPLE or head_dim > LARGEST_HEAD:
        return (
            f"cuDNN attention takes head_dim up to {LARGEST_HEAD} in multiples of"
            f" {HEAD_MULTIPLE}, not {head_dim}"
        )
    return None if in_order else "cuDNN attention takes tokens in their own order only"


def document_bounds(segments_BT: jax.Array, most: int) -> Bounds:
    """Lengths and offsets of the documents of rows, each a run of one number; padding too."""
    changes_BT = jnp.diff(segments_BT, axis=1, prepend=segments_BT[:, :1]) != 0
    number_BT = jnp.cumsum(changes_BT, axis=1)
    lengths_BM = jnp.sum(number_BT[:, :, None] == jnp.arange(most), axis=1, dtype=jnp.int32)
    there_BM = lengths_BM > 0
    ends_BM = jnp.cumsum(lengths_BM, axis=1, dtype=jnp.int32)
    offsets_BM = jnp.where(there_BM, ends_BM, -1)
    first_B1 = jnp.zeros((segments_BT.shape[0], 1), jnp.int32)
    return Bounds(
        lengths=jnp.where(there_BM, lengths_BM, -1),
        offsets=jnp.concatenate([first_B1, offsets_BM], axis=1),
        numbers=number_BT[:, -1] + 1,
    )


def _packed(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    bounds: Bounds,
    window: int | None,
    scale: float,
) -> jax.Array:
    # JAX has no public function for packed rows.
    from jax._src.cudnn import fused_attention_stablehlo as library  # noqa: PLC0415

    mixed_BTNH: jax.Array = library.dot_product_attention(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        q_seqlen=bounds.lengths,
        kv_seqlen=bounds.lengths,
        q_offsets=bounds.offsets,
        kv_offsets=bounds.offsets,
        scale=scale,
        mask_type=library.MaskType.PADDING_CAUSAL,
        sliding_window_length=window,
    )
    return mixed_BTNH
