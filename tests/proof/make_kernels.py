"""Compile JAX's own attention kernel, forward and backward, with whatever JAX is installed:

    python -m tests.proof.make_kernels

in an environment with `jax[tpu]` and nothing of muster. How a kernel is named, and whether what it
accumulates in VMEM is among its results, has changed with JAX; so the file's name says with which.
"""

import os
from functools import partial
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding, PartitionSpec

from tests.proof.keep import keep

BATCH, HEADS, KV_HEADS, TOKENS, HEAD_DIM, BLOCK = 2, 8, 2, 2048, 128, 512


def attend(fused: bool, q: Any, k: Any, v: Any, ids: Any) -> Any:
    """Causal attention of rows with segments: [B, heads, tokens, head_dim]."""
    sizes = splash.BlockSizes(
        block_q=BLOCK,
        block_kv=BLOCK,
        block_kv_compute=BLOCK,
        block_q_dkv=BLOCK,
        block_kv_dkv=BLOCK,
        block_kv_dkv_compute=BLOCK,
        block_q_dq=None if fused else BLOCK,
        block_kv_dq=None if fused else BLOCK,
        use_fused_bwd_kernel=fused,
    )
    mask = masks.MultiHeadMask([masks.CausalMask((TOKENS, TOKENS))] * HEADS)
    kernel = splash.make_splash_mha(mask=mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    return jax.vmap(kernel)(q, k, v, splash.SegmentIds(ids, ids))


def gradients(fused: bool, q: Any, k: Any, v: Any, ids: Any) -> Any:
    """Of attention's output, towards itself, by q, k and v."""
    out, back = jax.vjp(lambda q, k, v: attend(fused, q, k, v, ids), q, k, v)
    return back(out)


def main() -> None:
    """Compile both backward passes for a chip of v6e."""
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name="v6e:1x1x1", chips_per_host_bounds=(1, 1, 1)
    ).devices
    whole = NamedSharding(jax.sharding.Mesh(devices[:1], ("data",)), PartitionSpec())
    of_q = jax.ShapeDtypeStruct((BATCH, HEADS, TOKENS, HEAD_DIM), jnp.bfloat16, sharding=whole)
    of_kv = jax.ShapeDtypeStruct((BATCH, KV_HEADS, TOKENS, HEAD_DIM), jnp.bfloat16, sharding=whole)
    of_ids = jax.ShapeDtypeStruct((BATCH, TOKENS), jnp.int32, sharding=whole)
    for backward in ("fused", "apart"):
        step = jax.jit(partial(gradients, backward == "fused")).trace(of_q, of_kv, of_kv, of_ids)
        text = step.lower(lowering_platforms=("tpu",)).compile().as_text()
        keep(f"kernels/splash-{backward}-jax-{jax.__version__}", text)


if __name__ == "__main__":
    main()
