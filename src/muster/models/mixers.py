"""Mixers: how the tokens of one layer see each other; softmax attention and recurrences.

Legend, in the letters of the scaling book: D d_model, N query heads, K KV heads, H head_dim.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalization over a vector.

    `scale` and `bias` say which of its two learned vectors exist (a non-parametric norm has
    neither).
    """

    kind: Literal["rms", "layer"] = "rms"
    scale: bool = True
    bias: bool = False


RMS_NORM = Norm()
LAYER_NORM = Norm(kind="layer", bias=True)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Softmax attention: multi-head (K = N), grouped-query (1 < K < N) or multi-query (K = 1).

    Attributes:
        window: tokens a query sees, itself included; None for all before it.
        chunked: whether `window` cuts the sequence into chunks instead of sliding over it.
        qk_norm: norm of queries and keys; over one head's H numbers (with one scale for all heads,
            or one for `each_head`), or over all heads' together.
        output_gate: whether a second query-sized projection gates the output; `gate_bias` says
            whether it has a bias.
        own_kv: False for layers that reuse the keys and values of an earlier layer.
        own_value: False where the values are the keys (no value projection).
        value_head_dim: length of one head's value where it is not H.
        sinks: whether each head has one learned logit that takes weight from no token.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    qk_norm: Norm | None = None
    qk_norm_over: Literal["head", "each_head", "all"] = "head"
    window: int | None = None
    chunked: bool = False
    rotary: bool = True
    output_gate: bool = False
    gate_bias: bool = False
    own_kv: bool = True
    own_value: bool = True
    value_head_dim: int | None = None
    sinks: bool = False

    @property
    def scores_head_dim(self) -> int:
        """Length of the dot product of one query and one key."""
        return self.head_dim

    @property
    def values_head_dim(self) -> int:
        """Length of one head's value."""
        return self.value_head_dim or self.head_dim


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """The small scorer of sparse attention that picks which `top_k` keys a query sees.

    A layer without one of its `own` sees the keys that an earlier layer's picked.
    """

    num_heads: int
    head_dim: int
    top_k: int
    own: bool = True


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): K and V from a small latent.

    Attributes:
        q_lora_rank: rank of the query's factorization; None for one full matrix.
        kv_lora_rank: size of the latent that keys and values are expanded from.
        bias: whether the down-projections and the output carry biases.
        head_gate: whether one number a head, computed from the input, gates the output.
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    head_gate: bool = False
    indexer: Indexer | None = None
    window: int | None = None

    @property
    def scores_head_dim(self) -> int:
        """Length of the dot product of one query and one key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def values_head_dim(self) -> int:
        """Length of one head's value."""
        return self.v_head_dim


@dataclass(frozen=True, kw_only=True)
class Mamba2:
    """The selective state-space mixer of Mamba-2 (arXiv:2405.21060).

    Its projections are matmuls of the weight table. What the table does not see is the scan, whose
    cost per token depends on `state_numbers` (the recurrent state that is decayed, written and
    read) and, in the chunked form that trains, on the chunk; and the causal convolution, which
    takes `2 * conv_width` FLOPs for each of `conv_channels`.

    Attributes:
        state_size: N of the paper: the state kept for each of a head's `head_dim` channels.
        num_groups: groups of heads that share one B and one C (the keys and queries of the scan).
        chunk: tokens that the training form of the scan handles as one block.
        bias: whether the projections in carry biases; `output_bias` says it of the one out.
        norm: whether a gated norm stands before the output projection.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    chunk: int | None = None
    conv_bias: bool = True
    bias: bool = False
    output_bias: bool = False
    norm: bool = True

    @property
    def conv_channels(self) -> int:
        """Channels that the causal convolution runs over: the inputs, B and C."""
        return self.num_heads * self.head_dim + 2 * self.num_groups * self.state_size

    @property
    def state_numbers(self) -> int:
        """Numbers in one layer's recurrent state."""
        return self.num_heads * self.head_dim * self.state_size


@dataclass(frozen=True, kw_only=True)
class Mamba1:
    """The selective state-space mixer of Mamba (arXiv:2312.00752), with Jamba's norms if `norms`.

    Every one of its `inner` channels keeps `state_size` numbers; see `Mamba2` for what the scan and
    the convolution cost beside the projections.
    """

    inner: int
    state_size: int
    step_rank: int
    conv_width: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = True

    @property
    def conv_channels(self) -> int:
        """Channels that the causal convolution runs over."""
        return self.inner

    @property
    def state_numbers(self) -> int:
        """Numbers in one layer's recurrent state."""
        return self.inner * self.state_size


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention by the gated delta rule (arXiv:2412.06464), as in Qwen3-Next.

    Each value head keeps a matrix of `key_head_dim * value_head_dim` numbers that every token
    decays, corrects and reads: that work (`state_numbers`, by chunks in training) and the causal
    convolution over `conv_channels` are what the weight table's projections leave out.

    Attributes:
        channel_decay: Kimi's variant (arXiv:2510.26692), in which each channel decays on its own.
        rank: of the factors that the gate and that decay come from; None for plain projections.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    channel_decay: bool = False
    rank: int | None = None

    @property
    def conv_channels(self) -> int:
        """Channels that the causal convolution runs over: queries, keys and values."""
        keys = self.num_key_heads * self.key_head_dim
        return 2 * keys + self.num_value_heads * self.value_head_dim

    @property
    def state_numbers(self) -> int:
        """Numbers in one layer's recurrent state."""
        return self.num_value_heads * self.key_head_dim * self.value_head_dim


@dataclass(frozen=True, kw_only=True)
class ShortConv:
    """LFM2's gated short convolution: in by three gates of D, a causal convolution, out."""

    conv_width: int
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class LightningAttention:
    """Linear attention with a fixed decay and a gated output (MiniMax-01, arXiv:2501.08313)."""

    num_heads: int
    head_dim: int
    conv_width: int = 0
    conv_channels: int = 0

    @property
    def state_numbers(self) -> int:
        """Numbers in one layer's recurrent state."""
        return self.num_heads * self.head_dim**2


type Recurrence = Mamba1 | Mamba2 | GatedDeltaNet | LightningAttention | ShortConv
type Mixer = Attention | LatentAttention | Recurrence
