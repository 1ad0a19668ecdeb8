"""What one layer costs on one chip: seconds of its matmuls and kernels, bytes of everything else.

Elementwise work is counted in numbers moved through HBM, each operation reading its inputs and
writing its output (a fused program moves fewer; `Efficiency.elementwise` says how many):

    norm              2 D forward, 3 D backward
    residual          3 D and 3 D
    rotary            2 (N + K) H and as many
    activation        3 F and 5 F where gated, 2 F and 3 F where not
    experts           k D in and out of the expert's order, both ways

Legend: D d_model, F d_ff, N heads, K KV heads, H head_dim, k experts per token, T sequence.
"""

import math
from dataclasses import dataclass

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
)
from muster.roofline.efficiency import Efficiency
from muster.roofline.flops import attention_flops, indexer_flops, scan_flops
from muster.roofline.matmul import MatrixUnit
from muster.roofline.remat import (
    SPLIT_BY_TENSOR,
    Remat,
    input_size,
    layer_weights,
    output_size,
    part_of,
    result_is_read,
)
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.software import AttentionKernel
from muster.sharding.weights import Weight

BF16_BYTES = 2
KERNEL_BLOCK = 128  # queries and keys that a fused kernel handles as one block, on the diagonal too
SPLIT_DIMS = SPLIT_BY_TENSOR | {"d_ff", "vocab", "index_heads"}
# Launches of one layer's forward pass: its matmuls, and the elementwise work between them.
KERNELS_PER_LAYER = 20


@dataclass(frozen=True, slots=True)
class Matmul:
    """One matmul of a layer, or several that share their input and are done as one.

    Attributes:
        part: of `remat_policy.PARTS`.
        inputs: K, contracted.
        outputs: N.
        split_inputs: most tensor ways that divide K; 1 where it is whole on every chip.
        split_outputs: the same of N.
        experts: how many there are; 0 for a matmul that every token meets.
        active: experts that one token meets.
        read: whether it ends the MLP and the backward pass reads its result all the same.
    """

    part: str
    inputs: int
    outputs: int
    split_inputs: int
    split_outputs: int
    experts: int = 0
    active: int = 0
    read: bool = False


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What of a layer does not depend on the layout.

    Attributes:
        matmuls: in order.
        shared: parameters on every expert-parallel chip: (count, tensor ways that split it).
        routed: the same of routed experts.
        vectors: numbers per token moved by D-vectors, forward and backward.
        splits: the same of what tensor parallelism splits.
        blocks: mixer and MLP, those that are there; each gathers and scatters activations.
        routed_vectors: D-vectors of a token that experts gather and scatter where tokens have been
            dispatched: its copies, and itself for a shared expert; 0 for a dense layer.
        ends_read: whether the backward pass reads what the MLP gives (`Matmul.read`).
        dispatched: numbers per token sent to experts; 0 for a dense layer.
        keys_values: numbers per token of keys and values, for context parallelism.
        keys_values_ways: most tensor ways that divide them; more ways copy them.
    """

    layer: Layer
    d_model: int
    matmuls: tuple[Matmul, ...]
    shared: tuple[tuple[int, int], ...]
    routed: tuple[tuple[int, int], ...]
    vectors: tuple[int, int]
    splits: tuple[int, int]
    blocks: int
    routed_vectors: float
    ends_read: bool
    dispatched: int
    keys_values: int
    keys_values_ways: int


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Seconds of one layer for one microbatch on one chip.

    Attributes:
        forward: matmuls and the mixing kernel.
        backward: the same, two matmuls for each.
        by_part: forward seconds of each part, for what runs again.
        read: what of the part `down` gives something that the backward pass reads.
        moved_forward: seconds of elementwise work.
        moved_backward: the same.
        moved_mixing: what of `moved_forward` an unfused kernel's scores take.
    """

    forward: float
    backward: float
    by_part: dict[str, float]
    read: float
    moved_forward: float
    moved_backward: float
    moved_mixing: float


def layer_shape(architecture: Architecture, layer: Layer) -> LayerShape:
    """Read a layer's matmuls and vectors off the weight table."""
    weights = [w for w in layer_weights(architecture, layer) if w.trainable]
    shared: dict[int, int] = {}
    routed: dict[int, int] = {}
    for weight in weights:
        kind = shared if weight.active_share is None else routed
        ways = _split_ways(weight)
        kind[ways] = kind.get(ways, 0) + weight.size
    vectors, splits = _elementwise(architecture.d_model, layer)
    matmuls = _matmuls(weights, layer)
    mlp = layer.mlp
    experts = mlp if isinstance(mlp, Experts) else None
    dispatched = (
        experts.experts_per_token * (experts.latent or architecture.d_model) if experts else 0
    )
    return LayerShape(
        layer=layer,
        d_model=architecture.d_model,
        matmuls=matmuls,
        shared=tuple((count, ways) for ways, count in shared.items()),
        routed=tuple((count, ways) for ways, count in routed.items()),
        vectors=vectors,
        splits=splits,
        blocks=(layer.mixer is not None) + (mlp is not None),
        routed_vectors=dispatched / architecture.d_model
        + (1.0 if experts and experts.shared else 0.0),
        ends_read=any(each.read for each in matmuls),
        dispatched=dispatched,
        keys_values=_keys_values(layer.mixer),
        keys_values_ways=_keys_values_ways(layer.mixer),
    )


def layer_costs(
    shape: LayerShape,
    architecture: Architecture,
    unit: MatrixUnit,
    fitted: Efficiency,
    kernel: AttentionKernel,
    *,
    sequences: float,
    T: int,
    tensor: int,
    expert: int,
    sequence_sharded: bool,
    hbm_bandwidth: float,
    attention_flops_per_second: float,
) -> LayerCosts:
    """Cost one layer for the tokens of `sequences`, a fraction where sequence ways split them."""
    tokens = sequences * T
    by_part: dict[str, float] = {}
    forward = backward = read = 0.0
    for each in shape.matmuls:
        K = math.ceil(each.inputs / min(tensor, each.split_inputs))
        N = math.ceil(each.outputs / min(tensor, each.split_outputs))
        rows, times = tokens, 1.0
        if each.experts:
            local = each.experts / expert
            rows, times = tokens * each.active / local, local
        elif each.split_inputs == each.split_outputs == 1 and sequence_sharded:
            rows = tokens / tensor
        ahead, back = unit.training_seconds(rows, K, N)
        by_part[each.part] = by_part.get(each.part, 0.0) + times * ahead
        read += times * ahead if each.read else 0.0
        forward += times * ahead
        backward += times * back
    mixing, mixing_back, moved, moved_back = _mixing(
        shape.layer.mixer,
        architecture,
        unit,
        kernel,
        sequences=sequences,
        T=T,
        tensor=tensor,
        flops_per_second=attention_flops_per_second,
    )
    by_part["mixing"] = mixing
    rate = hbm_bandwidth * fitted.elementwise
    vector_ways = tensor if sequence_sharded else 1
    launches = fitted.kernel_seconds * KERNELS_PER_LAYER
    scale = BF16_BYTES * tokens / rate
    return LayerCosts(
        forward=forward + mixing,
        backward=backward + mixing_back,
        by_part=by_part,
        read=read,
        moved_forward=scale * (shape.vectors[0] / vector_ways + shape.splits[0] / tensor)
        + moved / rate
        + launches,
        moved_backward=scale * (shape.vectors[1] / vector_ways + shape.splits[1] / tensor)
        + moved_back / rate
        + 2 * launches,
        moved_mixing=moved / rate,
    )


def rerun_seconds(
    costs: LayerCosts, policy: RematPolicy, *, in_matmuls: bool
) -> tuple[float, float]:
    """Seconds of matmuls and of elementwise work that one layer computes again.

    Args:
        costs: of the layer.
        policy: what runs again.
        in_matmuls: whether elementwise work alone is done again as the backward pass's matmuls read
            it, which costs nothing: LLaMA-3 8B on v5p, compiled, takes 0.546 s with remat minimal
            and 0.550 s with none. Between matmuls that run again it is written as ever.
    """
    matmuls = sum(each for part, each in costs.by_part.items() if part in policy.rerun)
    if policy.runs_to_its_end:
        matmuls += costs.read
    if policy.elementwise and (policy.rerun or not in_matmuls):
        moved = costs.moved_forward
        if "mixing" not in policy.rerun:
            moved -= costs.moved_mixing
    else:
        moved = costs.moved_mixing if "mixing" in policy.rerun else 0.0
    return matmuls, moved


def _mixing(
    mixer: Mixer | None,
    architecture: Architecture,
    unit: MatrixUnit,
    kernel: AttentionKernel,
    *,
    sequences: float,
    T: int,
    tensor: int,
    flops_per_second: float,
) -> tuple[float, float, float, float]:
    """Seconds of the mixing kernel forward and backward, and bytes that an unfused one moves."""
    if mixer is None:
        return 0.0, 0.0, 0.0, 0.0
    if not isinstance(mixer, Attention | LatentAttention):
        scan = scan_flops(mixer, T, d_model=architecture.d_model) * sequences / tensor
        bytes_ = 8.0 * BF16_BYTES * architecture.d_model * T * sequences / tensor
        return scan / flops_per_second, 2 * scan / flops_per_second, bytes_, 2 * bytes_
    heads = math.ceil(mixer.num_heads / tensor) / mixer.num_heads * sequences
    flops = float(attention_flops(mixer, T, causal=kernel.fused))
    flops += indexer_flops(mixer, T, causal=kernel.fused)
    if not kernel.fused:
        scores = float(mixer.num_heads) * T * T * heads
        seconds = flops * heads / flops_per_second
        return (
            seconds,
            kernel.backward_matmuls * seconds,
            kernel.forward_score_bytes * scores,
            kernel.backward_score_bytes * scores,
        )
    diagonal = 1.0 + KERNEL_BLOCK / T
    d_qk, d_v = mixer.scores_head_dim, mixer.values_head_dim
    side = unit.side
    padded = (math.ceil(d_qk / side) + math.ceil(d_v / side)) * side / (d_qk + d_v)
    seconds = flops * heads * diagonal * padded / flops_per_second
    return seconds, kernel.backward_matmuls * seconds, 0.0, 0.0


def _matmuls(weights: list[Weight], layer: Layer) -> tuple[Matmul, ...]:
    """The layer's matmuls; those of one input that do not depend on each other as one."""
    found: list[Matmul] = []
    for weight in weights:
        if weight.role != "matmul":
            continue
        ways = _split_ways(weight)
        ends = weight.dims[-1] == "d_model" and weight.component != "extra"
        used, of = weight.active_share or (0, 0)
        part = part_of(weight)
        found.append(
            Matmul(
                part=part,
                inputs=input_size(weight),
                outputs=output_size(weight),
                split_inputs=ways if ends else 1,
                split_outputs=1 if ends else ways,
                experts=of,
                active=used,
                read=part == "down" and result_is_read(weight, layer, Remat.FULL),
            )
        )
    return tuple(found)


def _split_ways(weight: Weight) -> int:
    """Most tensor ways that split a weight."""
    for dim, size in zip(weight.dims, weight.shape, strict=True):
        if dim in SPLIT_DIMS:
            return size
    return 1


def _keys_values(mixer: Mixer | None) -> int:
    if isinstance(mixer, Attention):
        return 2 * mixer.num_kv_heads * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        return mixer.num_heads * (mixer.scores_head_dim + mixer.values_head_dim)
    return 0


def _keys_values_ways(mixer: Mixer | None) -> int:
    """Tensor ways that divide keys and values; beyond as many KV heads every chip has one whole."""
    if isinstance(mixer, Attention):
        return mixer.num_kv_heads
    return mixer.num_heads if isinstance(mixer, LatentAttention) else 1


def _elementwise(D: int, layer: Layer) -> tuple[tuple[int, int], tuple[int, int]]:
    blocks = (layer.mixer is not None) + (layer.mlp is not None)
    norms = len(layer.norms)
    vectors = [2 * D * norms + 3 * D * blocks, 3 * D * norms + 3 * D * blocks]
    splits = [0, 0]
    if isinstance(layer.mixer, Attention | LatentAttention):
        heads = layer.mixer.num_heads * layer.mixer.scores_head_dim
        keys = _keys_values(layer.mixer) // 2
        splits = [2 * (heads + keys), 2 * (heads + keys)]
    match layer.mlp:
        case Experts() as experts:
            k = experts.experts_per_token
            wide = k * experts.d_ff + (experts.shared.d_ff if experts.shared else 0)
            gated = experts.gated
            moved = 2 * k * (experts.latent or D)
            vectors = [vectors[0] + 2 * moved, vectors[1] + 2 * moved]
        case None:
            return (vectors[0], vectors[1]), (splits[0], splits[1])
        case mlp:
            wide, gated = mlp.d_ff, mlp.gated
    splits[0] += wide * (3 if gated else 2)
    splits[1] += wide * (5 if gated else 3)
    return (vectors[0], vectors[1]), (splits[0], splits[1])


def offloaded_bytes(shape: LayerShape, remat: RematPolicy, tensor: int) -> float:
    """Bytes per token of one layer that wait in the host's memory."""
    if not remat.offloaded:
        return 0.0
    numbers = float(shape.d_model) if "input" in remat.offloaded else 0.0
    for each in shape.matmuls:
        if each.part in remat.offloaded - {"down"}:
            numbers += each.outputs / min(tensor, each.split_outputs)
        if each.part == "out" and "mixing" in remat.offloaded:
            numbers += each.inputs / min(tensor, each.split_inputs)
    return numbers * BF16_BYTES
