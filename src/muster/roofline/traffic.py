"""Seconds of the collectives that a layout causes, and what of them stays visible.

    fsdp       AllGather of the weights forward and backward, ReduceScatter of the gradients
    tensor     AllGather before and ReduceScatter after each block (an AllReduce is both), forward
               and backward; once more where a block runs again, or its input is gathered again
    sequence   keys and values around the ring, forward; they and their derivatives, backward
    expert     AllToAll of tokens to their experts and back, forward and backward
    data       ReduceScatter of the gradients, AllGather of them or, under ZeRO-1, of the weights

Sources: the book's Part 5 ("How to Parallelize a Transformer for Training"); Korthikanti et al.
(arXiv:2205.05198, section 4.2.2) for sequence-sharded activations; Liu et al. (arXiv:2310.01889)
for the ring; DeepSpeed's ZeRO (arXiv:1910.02054).

Legend: D d_model.
"""

from collections.abc import Iterable

from muster.roofline.fabric import Group, Groups
from muster.roofline.layer_costs import BF16_BYTES, LayerShape
from muster.roofline.remat_policy import INTO_MIXER, INTO_MLP, RematPolicy

type Shapes = Iterable[tuple[LayerShape, int]]


def exposed(seconds: float, work: float, hidden: float) -> float:
    """What traffic leaves visible: it hides behind work, up to a share of itself.

    >>> exposed(1.0, 10.0, 0.75), exposed(1.0, 0.5, 0.75), exposed(1.0, 0.0, 0.75)
    (0.25, 0.5, 1.0)
    """
    return max((1.0 - hidden) * seconds, seconds - work)


def tensor_passes(shapes: Shapes, remat: RematPolicy, *, sequence_sharded: bool) -> float:
    """How often all layers gather or scatter the activations of one microbatch."""
    passes = 0.0
    for shape, copies in shapes:
        each = 4.0 * shape.blocks + (shape.blocks if sequence_sharded else 0.0)
        rerun = remat.rerun
        again = bool(rerun & INTO_MIXER) + ("out" in rerun)
        again += bool(rerun & INTO_MLP) + ("down" in rerun)
        again += shape.ends_read and remat.runs_to_its_end
        passes += copies * (each + again * remat.layers_share * shape.blocks / 2)
    return passes


def sequence_seconds(shapes: Shapes, group: Group, tokens: float, tensor: int) -> float:
    """Keys and values of one microbatch, all layers: once forward, twice as much backward."""
    if group.ways == 1:
        return 0.0
    whole = tokens * group.ways / tensor * BF16_BYTES
    return sum(
        3.0 * copies * group.all_gather(shape.keys_values * whole) for shape, copies in shapes
    )


def expert_seconds(
    shapes: Shapes, group: Group, tokens: float, tensor: int, remat: RematPolicy
) -> float:
    """Tokens of one microbatch to their experts and back, all layers."""
    if group.ways == 1:
        return 0.0
    passes = 4.0 + (2.0 * remat.layers_share if remat.rerun & INTO_MLP else 0.0)
    sent = tokens / tensor * BF16_BYTES
    return sum(
        passes * copies * group.all_to_all(shape.dispatched * sent) for shape, copies in shapes
    )


def weights_seconds(
    groups: Groups, *, dense: float, routed: float, layers: int, gather: float, reduce: float
) -> float:
    """Weights of all layers gathered twice, gradients scattered once.

    Args:
        groups: of the layout.
        dense: parameters of all layers on one chip once they are gathered, experts left out.
        routed: the same of experts, which expert ways already split.
        layers: how many collectives of each kind there are.
        gather: bytes of a parameter on its way.
        reduce: bytes of a gradient.
    """
    group = groups.weights
    if group.ways == 1:
        return 0.0
    bytes_each = 2 * gather + reduce
    seconds = bytes_each * dense * group.seconds_per_byte + 3 * layers * group.latency_seconds
    return seconds + bytes_each * routed * groups.fsdp.seconds_per_byte


def replica_seconds(group: Group, held: float, *, scatter: float, gather: float) -> float:
    """Gradients of `held` parameters summed between replicas, and what comes back."""
    return group.all_gather(held * scatter) + group.all_gather(held * gather)
