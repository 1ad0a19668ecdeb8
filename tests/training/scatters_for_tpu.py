"""Compile the scatter of a weight's gradient for TPUs, in a process of its own.

    python -m tests.training.scatters_for_tpu v5p:8x8x8 512 8192 28672

Prints every all-reduce and reduce-scatter of the program with its result, one a line.
"""

import re
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import PartitionSpec as P

from muster.hardware import parse_cluster
from muster.sharding.mesh import Layout
from muster.training.exchange import whole_weight
from muster.training.mesh import make_mesh, torus_pieces
from muster.training.partition import Partition


def main() -> None:
    """Print the collectives."""
    hardware, fsdp, rows, columns = sys.argv[1:]
    layout, compiler = Layout(fsdp=int(fsdp)), parse_cluster(hardware).chip.compiler
    assert compiler is not None
    topology = topologies.get_topology_desc(platform="tpu", topology_name=hardware)
    mesh = make_mesh(layout, topology.devices)
    place = Partition(
        mesh=mesh,
        layout=layout,
        pieces=torus_pieces(layout, topology.devices),
        gathers_at_once=True,
    )
    axes = place.over(("fsdp",))

    def gradient(shard: jax.Array, dy: jax.Array) -> jax.Array:
        def loss(shard: jax.Array) -> jax.Array:
            return jnp.sum(whole_weight(shard, (axes, ()), place, jnp.bfloat16) * dy)

        return jax.grad(loss)(shard)

    run = jax.shard_map(
        gradient, mesh=mesh, in_specs=(P(axes), P()), out_specs=P(axes), check_vma=False
    )
    shape = (int(rows), int(columns))
    weight = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place.named(axes, None))
    dy = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place.replicated)
    lowered = jax.jit(run).trace(weight, dy).lower(lowering_platforms=("tpu",))
    text = lowered.compile(dict(compiler.options)).as_text() or ""
    for result, kind in re.findall(r"= (\S+?)\{\S* (all-reduce|reduce-scatter)\(", text):
        sys.stdout.write(f"{kind} {result}\n")


if __name__ == "__main__":
    main()
