"""Recurrent mixers as configs describe them: which keys give the sizes, and what derives."""

from dataclasses import dataclass, replace

from muster.models.architecture import (
    GatedDeltaNet,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConv,
)
from muster.models.families import common, stack
from muster.models.reader import ConfigReader


@dataclass(frozen=True, kw_only=True)
class Mamba2Keys:
    """Under which keys a family's config gives the sizes of its Mamba-2 mixers."""

    num_heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    state_size: str = "mamba_d_state"
    num_groups: str = "mamba_n_groups"
    conv_width: str = "mamba_d_conv"
    chunk: str = "mamba_chunk_size"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"
    expand: str | None = "mamba_expand"


NEMOTRON_KEYS = Mamba2Keys(
    num_heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    state_size="ssm_state_size",
    num_groups="n_groups",
    conv_width="conv_kernel",
    chunk="chunk_size",
    conv_bias="use_conv_bias",
    bias="use_bias",
    expand=None,
)
MAMBA2_KEYS = replace(
    NEMOTRON_KEYS,
    num_heads="num_heads",
    head_dim="head_dim",
    state_size="state_size",
    expand="expand",
)


def mamba2(reader: ConfigReader, keys: Mamba2Keys = Mamba2Keys()) -> Mamba2:  # noqa: B008 (frozen)
    """Mamba-2; a head's size may be "auto", which is expand * D / heads, and must fit it if not."""
    heads = reader.size(keys.num_heads)
    head_dim = None if reader.raw(keys.head_dim) == "auto" else reader.size(keys.head_dim)
    if keys.expand is not None:
        inner = stack.scaled(reader, keys.expand, reader.size("hidden_size"))
        head_dim = head_dim or inner // heads
        if head_dim * heads != inner:
            reader.refuse(keys.num_heads, f"is {heads:,}, which does not make {inner:,} channels")
    elif head_dim is None:
        head_dim = reader.size(keys.head_dim)
    bias = reader.flag(keys.bias)
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        state_size=reader.size(keys.state_size),
        num_groups=reader.size(keys.num_groups),
        conv_width=reader.size(keys.conv_width),
        chunk=reader.optional_size(keys.chunk),
        conv_bias=reader.flag(keys.conv_bias),
        bias=bias,
        output_bias=bias,
    )


def mamba1(reader: ConfigReader, *, prefix: str = "", norms: bool) -> Mamba1:
    """Mamba; the rank of the step's projection may be "auto", which is D / 16 rounded up."""
    d_model = reader.size("hidden_size")
    jamba = prefix == "mamba_"
    rank_key = "mamba_dt_rank" if jamba else "time_step_rank"
    rank = -(-d_model // 16) if reader.raw(rank_key) == "auto" else reader.size(rank_key)
    return Mamba1(
        inner=stack.scaled(reader, f"{prefix}expand", d_model),
        state_size=reader.size("mamba_d_state" if jamba else "state_size"),
        step_rank=rank,
        conv_width=reader.size("mamba_d_conv" if jamba else "conv_kernel"),
        conv_bias=reader.flag("mamba_conv_bias" if jamba else "use_conv_bias"),
        bias=reader.flag("mamba_proj_bias" if jamba else "use_bias"),
        norms=norms,
    )


def delta_net(reader: ConfigReader) -> GatedDeltaNet:
    """Qwen3-Next's gated delta net."""
    return GatedDeltaNet(
        num_key_heads=reader.size("linear_num_key_heads"),
        num_value_heads=reader.size("linear_num_value_heads"),
        key_head_dim=reader.size("linear_key_head_dim"),
        value_head_dim=reader.size("linear_value_head_dim"),
        conv_width=reader.size("linear_conv_kernel_dim"),
    )


def olmo_delta_net(reader: ConfigReader) -> GatedDeltaNet:
    """Olmo's gated delta net, whose sizes follow from those of attention where they are null."""
    heads = reader.size("num_attention_heads")
    key_heads = reader.optional_size("linear_num_key_heads") or heads
    key_dim = reader.optional_size("linear_key_head_dim")
    if key_dim is None:
        key_dim = int(0.75 * reader.size("hidden_size") / key_heads)
    return GatedDeltaNet(
        num_key_heads=key_heads,
        num_value_heads=reader.optional_size("linear_num_value_heads") or heads,
        key_head_dim=key_dim,
        value_head_dim=reader.optional_size("linear_value_head_dim") or 2 * key_dim,
        conv_width=reader.size("linear_conv_kernel_dim"),
    )


def kimi_delta_net(reader: ConfigReader) -> GatedDeltaNet:
    """Kimi delta attention (arXiv:2510.26692); checkpoints nest its sizes in an object."""
    nested = reader.mapping("linear_attn_config") or {}
    names = {
        "linear_num_heads": "num_heads",
        "linear_head_dim": "head_dim",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }
    reader = reader.narrowed({ours: nested[its] for ours, its in names.items() if its in nested})
    heads, head_dim = reader.size("linear_num_heads"), reader.size("linear_head_dim")
    return GatedDeltaNet(
        num_key_heads=heads,
        num_value_heads=heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_width=reader.size("linear_conv_kernel_dim"),
        channel_decay=True,
        rank=head_dim,
    )


def bailing_delta_net(reader: ConfigReader) -> GatedDeltaNet:
    """Ling's delta net: Kimi's without the low rank, as many and as wide heads as attention."""
    heads, head_dim = reader.size("num_attention_heads"), reader.size("head_dim")
    return GatedDeltaNet(
        num_key_heads=heads,
        num_value_heads=heads,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        conv_width=reader.size("short_conv_kernel_size"),
        channel_decay=True,
    )


def lightning(reader: ConfigReader) -> LightningAttention:
    """MiniMax's linear attention, with as many heads as its softmax attention."""
    return LightningAttention(
        num_heads=reader.size("num_attention_heads"), head_dim=common.head_dim(reader)
    )


def short_conv(reader: ConfigReader) -> ShortConv:
    """LFM2's short convolution."""
    return ShortConv(conv_width=reader.size("conv_L_cache"), bias=reader.flag("conv_bias"))
