"""From attention on one chip to attention over a mesh, apart from the model that surrounds it.

Rows are split over the batch axes, tokens over `sequence`, query heads over `tensor`: only the
split of tokens makes chips talk, and that is the business of the function that is given. KV heads
are split over `tensor` where it divides them. Where it does not, they arrive whole, and each chip
takes the one that its query heads read.
"""

import dataclasses
from collections.abc import Callable

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from muster.sharding.rules import BATCH_AXES
from muster.training.attention.masking import Masking
from muster.training.attention.signature import Attend, check_heads


def on_mesh(attend_on_chip: Attend, mesh: Mesh) -> Attend:
    """Attention of arrays laid over a mesh, by a function of what one chip holds of them.

    Raises (when called):
        BadInput: neither do the tensor ways divide the KV heads nor the other way round.
    """

    def attend(
        q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, /, *, mask: Masking, scale: float
    ) -> jax.Array:
        N, K, tensor = q_BTNH.shape[2], k_BTKH.shape[2], int(mesh.shape["tensor"])
        check_heads(N, K, tensor)
        by_token = P(BATCH_AXES, "sequence")
        query_spec = P(BATCH_AXES, "sequence", "tensor", None)
        key_spec = query_spec if K % tensor == 0 else P(BATCH_AXES, "sequence", None, None)
        whole = None if mask.order is None else P()
        mask_spec = dataclasses.replace(mask, segments=by_token, order=whole)  # type: ignore[arg-type]
        own = _own_head(K, tensor)

        def on_chip(q: jax.Array, k: jax.Array, v: jax.Array, mask: Masking) -> jax.Array:
            return attend_on_chip(q, own(k), own(v), mask=mask, scale=scale)

        mapped = jax.shard_map(
            on_chip,
            mesh=mesh,
            in_specs=(
                query_spec,
                key_spec,
                key_spec,
                mask_spec,
            ),
            out_specs=query_spec,
            check_vma=False,  # attention's own backward pass says nothing of what varies where
        )
        mixed: jax.Array = mapped(q_BTNH, k_BTKH, v_BTKH, mask)
        return mixed

    return attend


def _own_head(kv_heads: int, tensor: int) -> Callable[[jax.Array], jax.Array]:
    """What a chip takes of the keys or values [B, T, K, H] that it is given."""
    if kv_heads % tensor == 0:
        return lambda whole: whole

    def take(whole_BTKH: jax.Array) -> jax.Array:
        head = lax.axis_index("tensor") // (tensor // kv_heads)
        return lax.dynamic_slice_in_dim(whole_BTKH, head, 1, axis=2)

    return take
