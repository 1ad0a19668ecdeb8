"""Compile splash attention, forward and backward, for four v5p chips that are not there."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from muster.sharding.mesh import Layout
from muster.sharding.rules import BATCH_AXES
from muster.training.attention import Masking
from muster.training.attention.splash import splash
from muster.training.mesh import make_mesh
from tests.training.attention.on_mesh import on_mesh

B, T, N, K, H = 4, 8192, 32, 8, 128  # LLaMA-3 8B, four rows


def main(layout: str, window: int | None) -> None:
    """Compile for a layout such as `sequence=2,tensor=2`, and say what came out."""
    ways: dict[str, Any] = {
        axis: int(size) for axis, size in (part.split("=") for part in layout.split(","))
    }
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1")
    mesh = make_mesh(Layout(**ways), topology.devices)
    attend = on_mesh(splash(ways.get("sequence", 1)), mesh)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        mask = Masking(segments=segments, window=window)
        return jnp.sum(attend(q, k, v, mask=mask, scale=H**-0.5).astype(jnp.float32))

    heads = NamedSharding(mesh, P(BATCH_AXES, "sequence", "tensor", None))
    tokens = NamedSharding(mesh, P(BATCH_AXES, "sequence"))
    arrays = [jax.ShapeDtypeStruct((B, T, n, H), jnp.bfloat16, sharding=heads) for n in (N, K, K)]
    segments = jax.ShapeDtypeStruct((B, T), jnp.int32, sharding=tokens)
    traced = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2))).trace(*arrays, segments)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    kernels = (compiled.as_text() or "").count('custom_call_target="tpu_custom_call"')
    memory = compiled.memory_analysis()
    assert memory is not None
    print("custom-calls", kernels, "temp MiB", memory.temp_size_in_bytes // 2**20)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
