"""JAX's splash attention on TPUs: a Pallas kernel that reads no block of which nothing is visible.

Query heads of a group read their KV head where it lies; nothing is repeated. Causality and windows
are computed inside the kernel from the tokens' order, documents are compared there. Under context
parallelism a chip has its own rows of the kernel's table of blocks, and all of the keys.

Letters: B sequences, T tokens of a chip, N query heads, K KV heads, H head_dim.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from muster.errors import BadInput
from muster.planner.step_choices import DEFAULT_STEP, LANES, AttentionBlocks
from muster.training.attention.context import AXIS, balanced_order, whole_row
from muster.training.attention.masking import Masking
from muster.training.attention.signature import Attend
from muster.training.recompute import MIXING


def library_blocks(blocks: AttentionBlocks, chunk: int) -> Any:
    """The library's block sizes for rows of equal chunks that no block may straddle.

    Raises:
        BadInput: the chunk is not a multiple of 128 tokens.
    """
    keys, backward_keys = _fitted(blocks.keys, chunk), _fitted(blocks.backward_keys, chunk)
    return _library().BlockSizes(
        block_q=_fitted(blocks.queries, chunk),
        block_kv=keys,
        block_kv_compute=_fitted(blocks.keys_computed, keys),
        block_q_dkv=_fitted(blocks.backward_queries, chunk),
        block_kv_dkv=backward_keys,
        block_kv_dkv_compute=_fitted(blocks.backward_keys_computed, backward_keys),
        block_q_dq=None if blocks.fused_backward else _fitted(blocks.dq_queries, chunk),
        block_kv_dq=None if blocks.fused_backward else _fitted(blocks.dq_keys, chunk),
        use_fused_bwd_kernel=blocks.fused_backward,
    )


def splash(
    ways: int = 1,
    *,
    blocks: AttentionBlocks = DEFAULT_STEP.attention_blocks,
    interpret: bool = False,
) -> Attend:
    """Attention of one chip, to be called with every axis manual.

    Args:
        ways: chips along `sequence`; tokens lie in `balanced_order` if there are several.
        blocks: the kernels' blocks.
        interpret: run on any device, slowly, as tests do.
    """

    def attend(
        q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, /, *, mask: Masking, scale: float
    ) -> jax.Array:
        if mask.order is not None:
            raise BadInput("splash attention takes tokens in their own order only")
        T, N = q_BTNH.shape[1:3]
        kernel = _kernel(
            heads=N,
            tokens=ways * T,
            ways=ways,
            window=mask.window,
            blocks=library_blocks(blocks, T if ways == 1 else T // 2),
            interpret=interpret,
        )
        segments_BT = jnp.asarray(mask.segments)
        segments = _library().SegmentIds(q=segments_BT, kv=segments_BT)
        if ways > 1:
            kernel = _own_rows(kernel, ways)
            segments = segments._replace(kv=whole_row(segments_BT, ways))
            k_BTKH, v_BTKH = whole_row(k_BTKH, ways), whole_row(v_BTKH, ways)
        # The kernel has no scale of its own.
        q_BTNH = (q_BTNH.astype(jnp.float32) * scale).astype(q_BTNH.dtype)
        heads_first = (x.swapaxes(1, 2) for x in (q_BTNH, k_BTKH, v_BTKH))
        mixed_BNTH: jax.Array = jax.vmap(kernel)(*heads_first, segments)
        return mixed_BNTH.swapaxes(1, 2)

    return attend


@cache
def _kernel(
    *,
    heads: int,
    tokens: int,
    ways: int,
    window: int | None,
    blocks: Any,
    interpret: bool,
) -> Any:
    """The library's kernel, with its table of visible blocks for all chips of a row.

    Built once: for 131,072 tokens the library takes 40 seconds.
    """
    library, square = _library(), (tokens, tokens)
    mask: Any = library.CausalMask(square)
    if window is not None:
        mask = library.LocalMask(square, window_size=(window - 1, 0), offset=0)
    if ways > 1:
        mask.q_sequence = balanced_order(tokens, ways)
    with jax.ensure_compile_time_eval():  # tables are constants, whoever is tracing
        kernel = library.make_splash_mha(
            library.MultiHeadMask([mask] * heads),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=ways,
            residual_checkpoint_name=MIXING,
            interpret=interpret,
        )
    return jax.tree.map(np.asarray, kernel)


def _library() -> Any:
    """JAX's kernels. Importing Pallas takes half a second, which only TPUs need to spend."""
    from jax.experimental.pallas.ops.tpu import splash_attention  # noqa: PLC0415

    return splash_attention


def _own_rows(kernel: Any, ways: int) -> Any:
    """The kernel with the rows of its tables that are this chip's."""
    chip = lax.axis_index(AXIS)

    def own(table: jax.Array) -> jax.Array:
        axis = 0 if table.ndim == 1 else 1  # the order [T], or blocks [heads, of queries, of keys]
        size = table.shape[axis] // ways
        return lax.dynamic_slice_in_dim(table, chip * size, size, axis)

    return jax.tree.map(own, kernel)


def _fitted(most: int, tokens: int) -> int:
    """The largest multiple of the lanes that divides a number of tokens and is at most `most`.

    >>> _fitted(512, 2048), _fitted(512, 1920), _fitted(1024, 256)
    (512, 384, 256)
    """
    if tokens % LANES:
        raise BadInput(
            f"splash attention takes multiples of {LANES} tokens (a row, or half of a chip's tokens"
            f" under context parallelism), not {tokens:,}"
        )
    sizes = range(max(LANES, min(most, tokens) // LANES * LANES), 0, -LANES)
    return next(size for size in sizes if tokens % size == 0)
