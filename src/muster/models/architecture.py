"""What a decoder is made of: frozen dataclasses that say its shape and nothing about where it runs.

An `Architecture` is a stack of `Layer`s; a layer is a *mixer* (how tokens see each other) and an
*MLP* (dense or experts), with its norms. Everything is spelled out layer by layer, so models whose
layers differ (sliding windows, first-k-dense, hybrids, pruned blocks) need no special case.

Legend, in the letters of the scaling book: L layers, D d_model, F d_ff, N query heads, K KV heads,
H head_dim, V vocabulary, E experts.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from muster.models.mixers import (
    LAYER_NORM,
    RMS_NORM,
    Attention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Norm,
    Recurrence,
    ShortConv,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "LAYER_NORM",
    "RMS_NORM",
    "Architecture",
    "Attention",
    "Experts",
    "ExtraWeight",
    "GatedDeltaNet",
    "Indexer",
    "LatentAttention",
    "Layer",
    "LightningAttention",
    "Mamba1",
    "Mamba2",
    "Mixer",
    "Mlp",
    "Norm",
    "Recurrence",
    "Rope",
    "ShortConv",
    "Tower",
]


@dataclass(frozen=True, kw_only=True)
class ExtraWeight:
    """A weight that one family has and no other.

    Attributes:
        name: dotted, e.g. `laurel.left`.
        shape: its sizes.
        dims: logical dims, as many as `shape` has.
        matmul: whether every token is multiplied by it (so that it costs 2 FLOPs a parameter).
        trainable: False for a buffer that checkpoints store.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    matmul: bool = False
    trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A dense MLP: `gated` has three D x F matrices (gate, up, down), plain has two."""

    d_ff: int
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: a router picks `experts_per_token` of `num_experts` MLPs.

    Attributes:
        d_ff: width of one routed expert.
        router_bias: a trained bias of the router.
        correction_bias: a stored, untrained bias that balances load (DeepSeek-V3).
        shared: an MLP that every token takes besides.
        shared_gate: whether a D-vector gates the shared MLP's output.
        latent: width that the routed experts work in, projected to from D and back; None for D.
    """

    num_experts: int
    experts_per_token: int
    d_ff: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    shared: Mlp | None = None
    shared_gate: bool = False
    latent: int | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer; a missing mixer or MLP is a block that was pruned or never there."""

    mixer: Mixer | None
    mlp: Mlp | Experts | None
    norms: tuple[Norm, ...] = (RMS_NORM, RMS_NORM)
    extra: tuple[ExtraWeight, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding as the config states it; `scaling` is None for the plain kind.

    Attributes:
        theta: base of the wavelengths (of the full-attention layers, where layers differ).
        factor: by how much `scaling` stretches positions.
        rotary_dim: numbers of each head that are rotated, in pairs; None where it was not read.
        sliding_theta: base of the sliding-window layers, where it is another one.
    """

    theta: float
    scaling: str | None = None
    factor: float | None = None
    rotary_dim: int | None = None
    sliding_theta: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A part beside the text decoder (a vision encoder and its projector), counted as a whole."""

    name: str
    weights: tuple[ExtraWeight, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only language model.

    Attributes:
        name: how the user or the catalogue calls it.
        family: Hugging Face's `model_type`.
        layers: every layer, in order.
        embedding_dim: width of the embedding where it differs from D (projected in and out).
        position_embeddings: rows of a learned position table; 0 for none.
        head_bias: whether the output head has a bias over the vocabulary.
        stores_tied_head: the published checkpoint holds the tied head a second time.
        mtp_layers: multi-token-prediction layers that published checkpoints hold beside the model;
            they are no part of it and of no total.
        filled_in: keys that the config lacks, with the class's own default that was used.
        notes: what a careful reader must know about this reading of the config.
        config: the config.json itself, as it was read.
    """

    name: str
    family: str
    d_model: int
    vocab_size: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    final_norm: Norm | None = RMS_NORM
    embedding_norm: Norm | None = None
    embedding_dim: int | None = None
    position_embeddings: int = 0
    head_bias: bool = False
    context_length: int | None = None
    rope: Rope | None = None
    extra: tuple[ExtraWeight, ...] = ()
    towers: tuple[Tower, ...] = ()
    stores_tied_head: bool = False
    mtp_layers: tuple[Layer, ...] = ()
    filled_in: tuple[tuple[str, object], ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    config: "Mapping[str, object]" = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @cached_property
    def layer_groups(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers with how many there are of each, in order of appearance."""
        return tuple(Counter(self.layers).items())

    @cached_property
    def typical_layer(self) -> Layer:
        """The most frequent layer; the earlier one of two that are as frequent."""
        return max(self.layer_groups, key=lambda group: group[1])[0]

    @cached_property
    def typical_attention(self) -> Attention | LatentAttention | None:
        """The most frequent attention, whatever MLP it stands beside."""
        return _most_frequent(
            layer.mixer
            for layer in self.layers
            if isinstance(layer.mixer, Attention | LatentAttention)
        )

    @cached_property
    def typical_mlp(self) -> Mlp | Experts | None:
        """The most frequent MLP, whatever mixer it stands beside; of as many, the experts."""
        mlps = [layer.mlp for layer in self.layers if layer.mlp is not None]
        return _most_frequent(sorted(mlps, key=lambda mlp: not isinstance(mlp, Experts)))

    @property
    def d_ff(self) -> int | None:
        """F of the most frequent MLP (of one routed expert, for a mixture of experts)."""
        return self.typical_mlp.d_ff if self.typical_mlp else None

    @property
    def num_heads(self) -> int | None:
        """N of the most frequent attention."""
        return self.typical_attention.num_heads if self.typical_attention else None

    @property
    def num_kv_heads(self) -> int | None:
        """K of the most frequent attention; latent attention expands to N heads."""
        attention = self.typical_attention
        if attention is None:
            return None
        return attention.num_kv_heads if isinstance(attention, Attention) else attention.num_heads

    @property
    def head_dim(self) -> int | None:
        """H: the length of one query-key dot product in the most frequent attention."""
        return self.typical_attention.scores_head_dim if self.typical_attention else None

    @property
    def experts(self) -> Experts | None:
        """The most frequent mixture of experts, if there is one."""
        return _most_frequent(layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts))


def _most_frequent[T](items: "Iterable[T]") -> T | None:
    counted = Counter(items)
    return max(counted, key=counted.__getitem__) if counted else None
