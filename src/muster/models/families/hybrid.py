"""Recurrent and hybrid decoders: state-space and linear-attention layers, alone or among others.

Sources: the papers that `models.architecture` names for each mixer, and the model classes of
Hugging Face transformers 5 for which layer has which mixer and what each stores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from muster.models.architecture import (
    RMS_NORM,
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
)
from muster.models.families import common, moe, recurrent, stack
from muster.models.families.common import Switch
from muster.models.families.dense import Builder
from muster.models.families.moe import Heads, MoeFamily
from muster.models.reader import ConfigReader

type KindRule = Callable[[ConfigReader, int], tuple[str, ...]]
type MixerOf = Callable[[ConfigReader], Mixer]
type MlpRule = Callable[[ConfigReader, int], tuple[Mlp | Experts | None, ...]]


@dataclass(frozen=True, kw_only=True)
class HybridFamily:
    """What one family alternates.

    Attributes:
        kinds: full or recurrent, layer by layer.
        recurrent: the mixer of the recurrent layers; `attention` that of the others.
        mlps: what follows the mixer, layer by layer.
        norms: norms of a layer.
        rotary: whether the attention layers rotate.
        may_be_tied: False for a class that has a head of its own whatever the file says.
        usual_rope: what the class takes where a file states no rotary embedding at all.
    """

    kinds: KindRule
    recurrent: MixerOf
    attention: MixerOf
    mlps: MlpRule
    norms: int = 2
    rotary: Callable[[ConfigReader], bool] = lambda _: True
    may_be_tied: bool = True
    usual_rope: Mapping[str, object] | None = None


def build_hybrid(
    reader: ConfigReader, name: str, config: Mapping[str, object], *, family: str
) -> Architecture:
    """Build a model of one of `FAMILIES`."""
    del config
    traits = FAMILIES[family]
    number = reader.layers()
    kinds = traits.kinds(reader, number)
    mixers = {
        kind: (traits.recurrent if kind == "recurrent" else traits.attention)(reader)
        for kind in dict.fromkeys(kinds)
    }
    if reader.has("tie_embedding"):  # LFM2's old name of the flag
        reader = reader.narrowed({"tie_word_embeddings": reader.raw("tie_embedding")})
    if not traits.may_be_tied:
        reader = stack.never_tied(reader)
    layers = tuple(
        Layer(mixer=mixers[kind], mlp=mlp, norms=(RMS_NORM,) * traits.norms)
        for kind, mlp in zip(kinds, traits.mlps(reader, number), strict=True)
    )
    rotates = traits.rotary(reader) and "full" in kinds
    rope = common.rope(reader, usual=traits.usual_rope) if rotates else None
    decoder = stack.decoder(reader, name, family, layers, rope=rope)
    return stack.predicting_ahead(reader, decoder)


# -------------------------------- attention beside them


def attention(heads: Heads) -> MixerOf:
    """Grouped-query attention with the given additions."""

    def mixer(reader: ConfigReader) -> Attention:
        return moe.attentions(reader, 1, heads)[0]

    return mixer


def gated_attention(reader: ConfigReader) -> Attention:
    """Qwen3-Next's attention: half of the doubled query projection gates the output."""
    bias = reader.flag("attention_bias")
    heads = Heads(bias=bias, output_bias=bias, qk_norm=True, output_gate=True)
    return replace(moe.attentions(reader, 1, heads)[0], gate_bias=bias)


def kimi_latent(reader: ConfigReader) -> LatentAttention:
    """Latent attention as Kimi Linear has it beside its recurrent layers."""
    return LatentAttention(
        num_heads=reader.size("num_attention_heads"),
        q_lora_rank=reader.optional_size("q_lora_rank"),
        kv_lora_rank=reader.size("kv_lora_rank"),
        qk_nope_head_dim=reader.size("qk_nope_head_dim"),
        qk_rope_head_dim=reader.size("qk_rope_head_dim"),
        v_head_dim=reader.size("v_head_dim"),
        bias=reader.flag("attention_bias"),
    )


def bailing_latent(reader: ConfigReader) -> LatentAttention:
    """Ling's latent attention, with a gate for each head."""
    return replace(kimi_latent(reader), head_gate=True)


# -------------------------------- which layer has which mixer


def all_recurrent(_: ConfigReader, layers: int) -> tuple[str, ...]:
    """No attention at all."""
    return ("recurrent",) * layers


def listed(reader: ConfigReader, layers: int) -> tuple[str, ...]:
    """By `layer_types`; all recurrent where a file has none."""
    return stack.layer_kinds(reader, layers, lambda _: "recurrent")


def full_every(period: int | str) -> KindRule:
    """By `layer_types`, or else attention in the last layer of each period."""

    def rule(reader: ConfigReader, layers: int) -> tuple[str, ...]:
        every = period if isinstance(period, int) else reader.size(period)
        return stack.layer_kinds(
            reader, layers, lambda layer: "recurrent" if (layer + 1) % every else "full"
        )

    return rule


def _olmo_kinds(reader: ConfigReader, layers: int) -> tuple[str, ...]:
    kinds = full_every(4)(reader, layers)
    return kinds if "full" in kinds else (*kinds[:-1], "full")


def _minimax_kinds(reader: ConfigReader, layers: int) -> tuple[str, ...]:
    return stack.layer_kinds(reader, layers, lambda layer: "recurrent" if layer % 2 else "full")


def _kimi_kinds(reader: ConfigReader, layers: int) -> tuple[str, ...]:
    nested = reader.mapping("linear_attn_config") or {}
    if reader.raw("layer_types") is None and "full_attn_layers" in nested:
        full = set(reader.narrowed(nested).sizes("full_attn_layers") or ())
        return tuple("full" if layer + 1 in full else "recurrent" for layer in range(layers))
    return stack.layer_kinds(
        reader, layers, lambda layer: "full" if layer and layer % 4 == 0 else "recurrent"
    )


def _full_at(key: str, *, otherwise_all: bool) -> KindRule:
    """By `layer_types`, or else attention in the layers whose numbers stand under `key`."""

    def rule(reader: ConfigReader, layers: int) -> tuple[str, ...]:
        full = reader.sizes(key)
        if full is None:
            full = tuple(range(layers)) if otherwise_all else ()
        return tuple("full" if layer in full else "recurrent" for layer in range(layers))

    def listed_or(reader: ConfigReader, layers: int) -> tuple[str, ...]:
        if otherwise_all and reader.raw("layer_types") is not None:
            return listed(reader, layers)
        return rule(reader, layers)

    return listed_or


def _jamba_kinds(reader: ConfigReader, layers: int) -> tuple[str, ...]:
    period, offset = reader.size("attn_layer_period"), reader.count("attn_layer_offset")
    return tuple("full" if layer % period == offset else "recurrent" for layer in range(layers))


# -------------------------------- what follows the mixer


def nothing(_: ConfigReader, layers: int) -> tuple[None, ...]:
    """A block that is its mixer alone."""
    return (None,) * layers


def dense(*, bias: Switch = False) -> MlpRule:
    """The same gated MLP everywhere."""

    def rule(reader: ConfigReader, layers: int) -> tuple[Mlp, ...]:
        d_ff = reader.size("intermediate_size")
        return (stack.gated_mlp(d_ff, bias=common.is_on(reader, bias)),) * layers

    return rule


def mixture(traits: MoeFamily) -> MlpRule:
    """Experts and MLPs by the table of mixtures."""
    return lambda reader, layers: moe.mlps(reader, layers, traits)


def _granite_mlps(reader: ConfigReader, layers: int) -> tuple[Mlp | Experts, ...]:
    """The shared MLP alone where there are no experts."""
    if reader.count("num_local_experts"):
        return moe.mlps(reader, layers, _GRANITE_EXPERTS)
    return (stack.gated_mlp(reader.count("shared_intermediate_size")),) * layers


def _jamba_sparse(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    period, offset = reader.size("expert_layer_period"), reader.count("expert_layer_offset")
    several = reader.count("num_experts") > 1
    return tuple(several and layer % period == offset for layer in range(layers))


def _lfm2_mlps(reader: ConfigReader, layers: int) -> tuple[Mlp, ...]:
    """Two thirds of the stated width, scaled and rounded up to a multiple, if so asked."""
    key = "block_ff_dim" if reader.has("block_ff_dim") else "intermediate_size"
    d_ff = reader.size(key)
    if reader.flag("block_auto_adjust_ff_dim"):
        d_ff = int(2 * d_ff / 3)
        if reader.raw("block_ffn_dim_multiplier") is not None:
            multiple = reader.size("block_multiple_of")
            d_ff = stack.scaled(reader, "block_ffn_dim_multiplier", d_ff)
            d_ff = multiple * -(-d_ff // multiple)
    return (stack.gated_mlp(d_ff),) * layers


def _lfm2_moe_mlps(reader: ConfigReader, layers: int) -> tuple[Mlp | Experts, ...]:
    balanced = reader.flag("use_expert_bias")
    traits = MoeFamily(sparse=stack.after_first("num_dense_layers"), correction_bias=balanced)
    return moe.mlps(reader, layers, traits)


_GRANITE_EXPERTS = MoeFamily(
    experts="num_local_experts",
    expert_d_ff="intermediate_size",
    shared=moe.width_under("shared_intermediate_size"),
)
_QWEN_EXPERTS = MoeFamily(
    shared=moe.width_under("shared_expert_intermediate_size"), shared_gate=True
)
_KIMI_EXPERTS = MoeFamily(
    per_token="num_experts_per_token",
    sparse=stack.by_mlp_layer_types("first_k_dense_replace"),
    shared=moe.times_expert("num_shared_experts"),
    correction_bias=True,
)
_PLAIN = attention(Heads())
_BIASED = attention(Heads(bias="attention_bias", output_bias="attention_bias"))
_NORMED = attention(Heads(qk_norm=True))


def _never(_: ConfigReader) -> bool:
    return False


FAMILIES = {
    "granitemoehybrid": HybridFamily(
        kinds=listed,
        recurrent=recurrent.mamba2,
        attention=_BIASED,
        mlps=_granite_mlps,
        rotary=lambda reader: reader.raw("position_embedding_type") == "rope",
    ),
    "bamba": HybridFamily(
        kinds=_full_at("attn_layer_indices", otherwise_all=False),
        recurrent=recurrent.mamba2,
        attention=_BIASED,
        mlps=dense(bias="mlp_bias"),
    ),
    "jamba": HybridFamily(
        kinds=_jamba_kinds,
        recurrent=partial(recurrent.mamba1, prefix="mamba_", norms=True),
        attention=_PLAIN,
        mlps=mixture(MoeFamily(expert_d_ff="intermediate_size", sparse=_jamba_sparse)),
        rotary=_never,
    ),
    "qwen3_next": HybridFamily(
        kinds=full_every("full_attention_interval"),
        recurrent=recurrent.delta_net,
        attention=gated_attention,
        mlps=mixture(replace(_QWEN_EXPERTS, sparse=stack.every_step)),
    ),
    "qwen3_5_text": HybridFamily(
        kinds=full_every("full_attention_interval"),
        recurrent=recurrent.delta_net,
        attention=gated_attention,
        mlps=dense(),
    ),
    "qwen3_5_moe_text": HybridFamily(
        kinds=full_every("full_attention_interval"),
        recurrent=recurrent.delta_net,
        attention=gated_attention,
        mlps=mixture(_QWEN_EXPERTS),
    ),
    "olmo_hybrid": HybridFamily(
        kinds=_olmo_kinds,
        recurrent=recurrent.olmo_delta_net,
        attention=attention(
            Heads(
                bias="attention_bias",
                output_bias="attention_bias",
                qk_norm=True,
                qk_norm_over="all",
            )
        ),
        mlps=dense(),
    ),
    "kimi_linear": HybridFamily(
        kinds=_kimi_kinds,
        recurrent=recurrent.kimi_delta_net,
        attention=kimi_latent,
        mlps=mixture(_KIMI_EXPERTS),
        rotary=_never,
        may_be_tied=False,
    ),
    "bailing_hybrid": HybridFamily(
        kinds=full_every("layer_group_size"),
        recurrent=recurrent.bailing_delta_net,
        attention=bailing_latent,
        mlps=mixture(_KIMI_EXPERTS),
        usual_rope={"rope_theta": 6000000.0},
    ),
    "minimax": HybridFamily(
        kinds=_minimax_kinds,
        recurrent=recurrent.lightning,
        attention=attention(Heads(windows=stack.same_window)),
        mlps=mixture(MoeFamily(experts="num_local_experts", expert_d_ff="intermediate_size")),
    ),
    "lfm2": HybridFamily(
        kinds=_full_at("full_attn_idxs", otherwise_all=True),
        recurrent=recurrent.short_conv,
        attention=_NORMED,
        mlps=_lfm2_mlps,
    ),
    "lfm2_moe": HybridFamily(
        kinds=listed, recurrent=recurrent.short_conv, attention=_NORMED, mlps=_lfm2_moe_mlps
    ),
    "mamba2": HybridFamily(
        kinds=all_recurrent,
        recurrent=partial(recurrent.mamba2, keys=recurrent.MAMBA2_KEYS),
        attention=_PLAIN,
        mlps=nothing,
        norms=1,
    ),
    "mamba": HybridFamily(
        kinds=all_recurrent,
        recurrent=partial(recurrent.mamba1, norms=False),
        attention=_PLAIN,
        mlps=nothing,
        norms=1,
    ),
}
FAMILIES["falcon_mamba"] = FAMILIES["mamba"]

BUILDERS: dict[str, Builder] = {family: partial(build_hybrid, family=family) for family in FAMILIES}
