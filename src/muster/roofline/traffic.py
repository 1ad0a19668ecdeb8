"""Seconds of the collectives that a layout causes, and what of them stays visible.

    fsdp       AllGather of the weights forward and backward, ReduceScatter of the gradients; of
               embedding and head one AllGather
    tensor     AllGather before and ReduceScatter after each block (an AllReduce is both), forward
               and backward; once more where a block runs again, or its input is gathered again; of
               each token's copies where experts got them; at embedding and head
    sequence   keys and values around the ring, forward; they and their derivatives, backward
    expert     AllToAll of tokens to their experts and back, forward and backward
    data       ReduceScatter of the gradients, AllGather of them or, under ZeRO-1, of the weights

Sources: the book's Part 5 ("How to Parallelize a Transformer for Training"); Korthikanti et al.
(arXiv:2205.05198, section 4.2.2) for sequence-sharded activations; Liu et al. (arXiv:2310.01889)
for the ring; DeepSpeed's ZeRO (arXiv:1910.02054).

Legend: D d_model.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from muster.models.architecture import Architecture, Attention, LatentAttention
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


@dataclass(frozen=True, slots=True)
class Passes:
    """Gathers and scatters of one microbatch's activations, all layers.

    Attributes:
        times: how many there are.
        vectors: D-vectors of each token that they move together.
    """

    times: float
    vectors: float


def tensor_passes(
    shapes: Shapes, remat: RematPolicy, *, sequence_sharded: bool, dispatched: bool
) -> Passes:
    """How often all layers gather or scatter the activations of one microbatch.

    Args:
        shapes: distinct layers with how many there are of each.
        remat: what runs again.
        sequence_sharded: whether the backward pass gathers a block's input again.
        dispatched: whether expert ways deal out tokens, so that experts split by tensor ways gather
            and scatter a token's k copies instead of the token.
    """
    times = vectors = 0.0
    for shape, copies in shapes:
        each = 5.0 if sequence_sharded else 4.0
        rerun, share = remat.rerun, remat.layers_share
        mixer = each + share * (bool(rerun & INTO_MIXER) + ("out" in rerun))
        mlp = each + share * (
            bool(rerun & INTO_MLP) + ("down" in rerun) + (shape.ends_read and remat.runs_to_its_end)
        )
        mixer *= shape.layer.mixer is not None
        mlp *= shape.layer.mlp is not None
        wide = shape.routed_vectors if dispatched and shape.routed_vectors else 1.0
        times += copies * (mixer + mlp)
        vectors += copies * (mixer + mlp * wide)
    return Passes(times, vectors)


def end_passes(*, sequence_sharded: bool) -> float:
    """How often embedding and head, split by vocabulary, gather or scatter activations.

    The embedding scatters partial rows forward and gathers their derivatives backward; the head
    gathers its input, again for its weights' gradient where that is sequence-sharded, and scatters
    its derivative. Source: Megatron-LM's `VocabParallelEmbedding` and `ColumnParallelLinear`. The
    loss's maxima and sums are two numbers a token.
    """
    return 5.0 if sequence_sharded else 4.0


def splits_sequences(architecture: Architecture) -> bool:
    """Whether sequence ways can split this model's work.

    Attention reads keys and values of other parts, which they send. A recurrent layer (Mamba-2, a
    gated delta net) reads the state that the part before leaves behind: its parts run one after the
    other, which no term here counts.
    """
    return all(
        layer.mixer is None or isinstance(layer.mixer, Attention | LatentAttention)
        for layer, _ in architecture.layer_groups
    )


def sequence_seconds(shapes: Shapes, group: Group, tokens: float, tensor: int) -> float:
    """Keys and values of one microbatch, all layers: once forward, twice as much backward.

    A chip has its share of the heads, or one whole head where there are more ways than KV heads.
    """
    if group.ways == 1:
        return 0.0
    whole = tokens * group.ways * BF16_BYTES
    return sum(
        3.0
        * copies
        * group.all_gather(shape.keys_values / min(tensor, shape.keys_values_ways) * whole)
        for shape, copies in shapes
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
        layers: how many collectives of each kind there are, of dense weights and of experts.
        gather: bytes of a parameter on its way.
        reduce: bytes of a gradient.
    """
    collectives = 3 * layers
    bytes_each = 2 * gather + reduce
    seconds = bytes_each * dense * groups.weights.seconds_per_byte
    seconds += collectives * groups.weights.latency_seconds
    if routed:
        seconds += bytes_each * routed * groups.routed.seconds_per_byte
        seconds += collectives * groups.routed.latency_seconds
    return seconds


def outer_seconds(group: Group, outer: float, *, tied: bool, gather: float, reduce: float) -> float:
    """Embedding and head gathered, and their gradients scattered, for one microbatch.

    Each is gathered once: the embedding's backward pass reads no weights, and the head's follows
    its forward pass. A tied table is gathered at both ends.

    Args:
        group: what shards them.
        outer: parameters outside the layers on one chip once they are gathered.
        tied: whether embedding and head are one table.
        gather: bytes of a parameter on its way.
        reduce: bytes of a gradient.
    """
    if group.ways == 1:
        return 0.0
    gathers = 2 if tied else 1
    collectives = gathers + 1 if tied else 4
    bytes_each = gathers * gather + reduce
    return bytes_each * outer * group.seconds_per_byte + collectives * group.latency_seconds


def replica_seconds(group: Group, held: float, *, scatter: float, gather: float) -> float:
    """Gradients of `held` parameters summed between replicas, and what comes back."""
    return group.all_gather(held * scatter) + group.all_gather(held * gather)
