"""What a layer keeps for its backward pass: the planner's policies as JAX's.

    none       the output of every matmul, and what norms and dispatch give
    minimal    the output of every matmul
    outputs    the layer's input and the residual stream after attention
    full       the layer's input
    offload    as minimal, in the host's memory

See `muster.roofline.remat`, whose memory counts the same tensors by the same names.

No policy keeps an MLP's product, or queries and keys after their rotation: a TPU computes them as a
matmul reads them, or nearly so. LLaMA-3 8B on v5p, compiled: 510 ms of cycles with them kept, 491
without.
"""

from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_name

from muster.roofline.remat import Remat

# A layer's input. What computes from it again must read it by this name, or it could not leave.
INPUT = "input"
# Attention's output and log-sum-exp, which its backward pass reads.
MIXING = "mixing"
MATMUL_OUTPUTS = ("query", "key", "value", MIXING, "out", "gate", "up", "down", "router", "expert")
# The residual stream after attention.
MIDDLE = "middle"
# What stands between matmuls and is kept by `none`.
NORMED, DISPATCHED = "normed", "dispatched"
ELEMENTWISE = (NORMED, DISPATCHED)


def named(name: str, x: jax.Array) -> jax.Array:
    """Give a tensor the name under which a policy may keep it."""
    kept: jax.Array = checkpoint_name(x, name)
    return kept


def recomputing[**Args, Out](layer: Callable[Args, Out], remat: Remat) -> Callable[Args, Out]:
    """A layer that keeps what the policy names and computes the rest again.

    No policy keeps what was gathered, be it weights or tokens: the backward pass gathers again.
    Nor does any keep float32 between matmuls: it costs no more to compute than to fetch.
    """
    policies = jax.checkpoint_policies
    match remat:
        case Remat.NONE:
            policy = policies.save_only_these_names(*MATMUL_OUTPUTS, *ELEMENTWISE)
        case Remat.MINIMAL:
            policy = policies.save_only_these_names(*MATMUL_OUTPUTS)
        case Remat.OUTPUTS:
            policy = policies.save_only_these_names(MIDDLE)
        case Remat.FULL:
            policy = policies.nothing_saveable
        case Remat.OFFLOAD:
            policy = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[],
                names_which_can_be_offloaded=[INPUT, *MATMUL_OUTPUTS],
                offload_src="device",
                offload_dst="pinned_host",
            )
    # The layers are scanned, so no common-subexpression elimination can undo the recomputation.
    return jax.checkpoint(layer, policy=policy, prevent_cse=False)
