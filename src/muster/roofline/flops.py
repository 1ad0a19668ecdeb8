"""FLOPs of training: the 6 N rule, and the exact count of every matmul.

A matmul with P parameters costs 2 P per token forward and 4 P backward (2 P for the derivative of
its input, 2 P for that of its weight): the book's Part 4, "Forward and reverse FLOPs". Attention
costs, per layer and sequence of T tokens,

    forward = 2 * N * (Hqk + Hv) * pairs,    backward = 2 * forward

where `pairs` counts the (query, key) pairs that the mask lets through; with Hqk = Hv = H and all
T^2 pairs, forward and backward are the book's 12 T^2 N H (Part 4, "Global FLOPs and Params
Calculation").

Counted are the model's own FLOPs, and apart from them those that a remat policy computes again.
Left out, as everywhere in the field: norms, softmax, RoPE, activation functions (no matmuls), the
embedding lookup (no arithmetic), the score matrix that a fused backward kernel computes a second
time, and the optimizer.

Legend: L layers, D d_model, F d_ff, N query heads, K KV heads, Hqk and Hv lengths of a head's query
and value, V vocabulary, E experts, T sequence length, W window.
"""

from dataclasses import dataclass
from functools import cached_property

from muster.models.architecture import (
    Architecture,
    Attention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mixer,
    ShortConv,
)
from muster.roofline.remat import MIXING, Remat, layer_weights, rerun_matmuls
from muster.sharding.weights import Weight, weight_table

COMPONENT_BY_PREFIX = {
    "layers.attention.indexer": "indexer projections",
    "layers.attention": "attention projections",
    "layers.mlp": "mlp",
    "layers.experts": "routed experts",
    "layers.router": "router",
    "layers.recurrence": "recurrence projections",
    "layers.shared_experts": "shared experts",
}
COMPONENT_BY_KIND = {
    "embedding": "embedding projection",
    "head": "head",
    "extra": "extra",
}
ATTENTION_SCORES = "attention scores"
INDEXER_SCORES = "indexer scores"
SCAN = "recurrence scan"
WITHOUT_WEIGHTS = (ATTENTION_SCORES, INDEXER_SCORES, SCAN)


@dataclass(frozen=True, kw_only=True)
class SixN:
    """The 6 N rule, FLOPs per token."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        """6 N."""
        return self.forward + self.backward


def six_n(active_params: int) -> SixN:
    """FLOPs per token of one training step: 2 N forward, 4 N backward.

    Source: the book's Part 4, "Forward and reverse FLOPs"; Kaplan et al. (arXiv:2001.08361). N is
    what one token meets: for a mixture of experts the active parameters, embeddings included.

    >>> six_n(70_000_000_000).total
    420000000000
    """
    return SixN(forward=2 * active_params, backward=4 * active_params)


@dataclass(frozen=True, kw_only=True)
class FlopComponent:
    """The FLOPs of one part of the model for one sequence."""

    name: str
    forward: int
    recompute: int = 0

    @property
    def backward(self) -> int:
        """Two matmuls for each of the forward pass."""
        return 2 * self.forward

    @property
    def total(self) -> int:
        """Forward, backward and what is computed again."""
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True, kw_only=True)
class FlopCount:
    """FLOPs of one training step on one sequence, exact.

    Attributes:
        sequence_length: T.
        components: the parts, in the order in which a token meets them; the totals are their sums.
        not_counted: parts of this model whose FLOPs are left out, in words.
    """

    sequence_length: int
    components: tuple[FlopComponent, ...]
    not_counted: tuple[str, ...] = ()

    @cached_property
    def forward(self) -> int:
        """Of the forward pass."""
        return sum(part.forward for part in self.components)

    @cached_property
    def backward(self) -> int:
        """Of the backward pass, recomputation apart."""
        return sum(part.backward for part in self.components)

    @cached_property
    def recompute(self) -> int:
        """Of what the backward pass computes again."""
        return sum(part.recompute for part in self.components)

    @property
    def model(self) -> int:
        """Forward and backward: what an MFU counts."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """With recomputation: what an HFU counts."""
        return self.model + self.recompute

    @property
    def model_per_token(self) -> float:
        """`model` per token."""
        return self.model / self.sequence_length

    @property
    def hardware_per_token(self) -> float:
        """`hardware` per token."""
        return self.hardware / self.sequence_length

    def component(self, name: str) -> FlopComponent:
        """The part called `name`; one of no FLOPs where the model has none."""
        for part in self.components:
            if part.name == name:
                return part
        return FlopComponent(name=name, forward=0)


def attention_pairs(
    sequence_length: int, *, causal: bool, window: int | None = None, chunked: bool = False
) -> int:
    """How many (query, key) pairs one head of one sequence scores.

    Causal: T(T+1)/2. With a sliding window of W <= T: W T - W(W-1)/2, as the first queries see
    fewer. Chunked: blocks of W tokens, each causal on its own. Not causal: the same mask and its
    mirror image, so 2 causal - T, which is T^2 without a window.

    >>> attention_pairs(4096, causal=True), attention_pairs(4096, causal=False)
    (8390656, 16777216)
    >>> attention_pairs(8, causal=True, window=3), attention_pairs(8, causal=True, window=3,
    ...     chunked=True)
    (21, 15)
    """
    T, W = sequence_length, min(window or sequence_length, sequence_length)
    if chunked:
        blocks, rest = divmod(T, W)
        pairs = blocks * (W * (W + 1) // 2) + rest * (rest + 1) // 2
    else:
        pairs = W * T - W * (W - 1) // 2
    return pairs if causal else 2 * pairs - T


def attention_flops(mixer: Mixer, sequence_length: int, *, causal: bool) -> int:
    """Forward FLOPs of one layer's scores and values, for one sequence.

    With a sparse-attention indexer a query attends to min(top_k, i) of its i keys (or, not causal,
    to min(top_k, T)); the indexer's own scores are `indexer_flops`.

    >>> attention_flops(Attention(num_heads=64, num_kv_heads=8, head_dim=128), 8192, causal=False)
    2199023255552
    """
    if not isinstance(mixer, Attention | LatentAttention):
        return 0
    chunked = isinstance(mixer, Attention) and mixer.chunked
    pairs = attention_pairs(sequence_length, causal=causal, window=mixer.window, chunked=chunked)
    indexer = _indexer(mixer)
    if indexer:
        top_k = min(indexer.top_k, sequence_length)
        picked = attention_pairs(sequence_length, causal=True, window=top_k)
        pairs = min(pairs, picked if causal else top_k * sequence_length)
    return 2 * mixer.num_heads * (mixer.scores_head_dim + mixer.values_head_dim) * pairs


def indexer_flops(mixer: Mixer, sequence_length: int, *, causal: bool) -> int:
    """Forward FLOPs of a sparse-attention indexer's scores: 2 * heads * dim * pairs.

    Every pair is scored, whatever is picked (DeepSeek-V3.2, "DeepSeek Sparse Attention").
    """
    indexer = _indexer(mixer)
    if indexer is None or not indexer.own:
        return 0
    pairs = attention_pairs(sequence_length, causal=causal)
    return 2 * indexer.num_heads * indexer.head_dim * pairs


def scan_flops(mixer: Mixer, sequence_length: int, *, d_model: int) -> int:
    """Forward FLOPs of one recurrent layer's scan and convolution, for one sequence.

    Per token, 2 for each number of the state that is written and 2 for each that is read (the
    gated delta rule reads twice, first to correct what it writes), and 2 * width for each channel
    of the causal convolution. The form that trains works by chunks and multiplies within each;
    that, and the decay of the state, are not counted.

    Sources: Mamba-2 (arXiv:2405.21060, section 6), gated delta nets (arXiv:2412.06464, section 3).

    >>> scan_flops(GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128,
    ...     value_head_dim=128, conv_width=4), 1, d_model=2048)
    3211264
    """
    if isinstance(mixer, Attention | LatentAttention):
        return 0
    if isinstance(mixer, ShortConv):
        return 2 * mixer.conv_width * d_model * sequence_length
    products = 3 if isinstance(mixer, GatedDeltaNet) else 2
    per_token = 2 * products * mixer.state_numbers + 2 * mixer.conv_width * mixer.conv_channels
    return per_token * sequence_length


def training_flops(
    architecture: Architecture,
    sequence_length: int,
    *,
    causal: bool = True,
    remat: Remat = Remat.NONE,
    whole_layer: bool = False,
) -> FlopCount:
    """FLOPs of every matmul of one training step on one sequence.

    Args:
        architecture: the model; its vision towers, which no text token meets, cost nothing here.
        sequence_length: T.
        causal: count only the pairs that the mask lets through (what a good kernel computes).
        remat: the recomputation policy.
        whole_layer: see `rerun_matmuls`.
    """
    forward, recompute = _outer_matmuls(architecture, sequence_length), dict[str, int]()
    not_counted: list[str] = []
    for layer, copies in architecture.layer_groups:
        rerun = rerun_matmuls(architecture, layer, remat, whole_layer=whole_layer)
        tokens = copies * sequence_length
        costs = [
            (w.name, _component(w), 2 * w.active_count * tokens)
            for w in layer_weights(architecture, layer)
            if w.role == "matmul"
        ]
        if layer.mixer is not None:
            scores = attention_flops(layer.mixer, sequence_length, causal=causal)
            picking = indexer_flops(layer.mixer, sequence_length, causal=causal)
            scan = scan_flops(layer.mixer, sequence_length, d_model=architecture.d_model)
            for component, cost in zip(WITHOUT_WEIGHTS, (scores, picking, scan), strict=True):
                costs.append((MIXING, component, copies * cost))
            not_counted += _left_out(layer.mixer)
        for name, component, cost in costs:
            forward[component] = forward.get(component, 0) + cost
            if name in rerun:
                recompute[component] = recompute.get(component, 0) + cost
    head = forward.pop("head")
    return FlopCount(
        sequence_length=sequence_length,
        components=tuple(
            FlopComponent(name=name, forward=cost, recompute=recompute.get(name, 0))
            for name, cost in [*forward.items(), ("head", head)]
            if cost
        ),
        not_counted=tuple(dict.fromkeys(not_counted)),
    )


def _outer_matmuls(architecture: Architecture, sequence_length: int) -> dict[str, int]:
    """The matmuls outside the layers; a tied head multiplies by the embedding all the same."""
    flops: dict[str, int] = {"head": 0}
    for weight in weight_table(architecture):
        outside = not weight.name.startswith("layers.") and weight.component != "tower"
        if outside and weight.role == "matmul":
            component = _component(weight)
            cost = 2 * weight.active_count * sequence_length
            flops[component] = flops.get(component, 0) + cost
    if architecture.tied_embeddings:
        width = architecture.embedding_dim or architecture.d_model
        flops["head"] += 2 * width * architecture.vocab_size * sequence_length
    return flops


def _component(weight: Weight) -> str:
    for prefix, component in COMPONENT_BY_PREFIX.items():
        if weight.name == prefix or weight.name.startswith(f"{prefix}."):
            return component
    return COMPONENT_BY_KIND.get(weight.component, weight.component)


def _indexer(mixer: Mixer) -> Indexer | None:
    return mixer.indexer if isinstance(mixer, LatentAttention) else None


def _left_out(mixer: Mixer) -> list[str]:
    if isinstance(mixer, Attention | LatentAttention | ShortConv):
        return []
    return [f"products within a chunk of the {type(mixer).__name__} scan, and its decays"]
