"""Mixtures of experts over grouped-query attention: one builder, and a table of what differs.

Sources of the table: the model classes of Hugging Face transformers 5 (`modeling_<family>.py`),
which also define what is stored but not trained (the load-balancing biases of arXiv:2408.15664).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from muster.models.architecture import (
    LAYER_NORM,
    RMS_NORM,
    Architecture,
    Attention,
    Experts,
    Layer,
    Mlp,
    Norm,
)
from muster.models.families import common, moe_rules, stack
from muster.models.families.common import Switch, is_on
from muster.models.families.dense import Builder
from muster.models.reader import ConfigReader

SCALE_ONLY_NORM = Norm(kind="layer")

type Width = Callable[[ConfigReader, int], int]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What a family's attention adds to plain grouped-query attention."""

    bias: Switch = False
    output_bias: Switch = False
    qk_norm: Switch = False
    qk_norm_over: Literal["head", "all"] = "head"
    output_gate: bool = False
    sinks: bool = False
    windows: stack.WindowRule = stack.no_window
    chunked: bool = False
    rotary: Literal["all", "windowed"] = "all"


@dataclass(frozen=True, kw_only=True)
class MoeFamily:
    """What one family's stack has: config keys by what they mean, rules, and fixed habits.

    Attributes:
        experts: key of E; `per_token` of k; `expert_d_ff` of a routed expert's F.
        dense_d_ff: key of F in the layers without experts.
        sparse: which layers have experts.
        shared: width of the MLP that every token takes besides, from the config and an expert's F.
        mlp_bias: biases of the dense and the shared MLPs; `expert_bias` of the routed ones.
        usual_rope: what the class takes where a file states no rotary embedding at all.
    """

    experts: str = "num_experts"
    per_token: str = "num_experts_per_tok"
    expert_d_ff: str = "moe_intermediate_size"
    dense_d_ff: str = "intermediate_size"
    heads: Heads = Heads()
    sparse: stack.LayerRule = stack.all_layers
    shared: Width | None = None
    shared_gate: bool = False
    mlp_bias: Switch = False
    expert_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    norms: tuple[Norm, ...] = (RMS_NORM, RMS_NORM)
    final_norm: Norm = RMS_NORM
    head_bias: Switch = False
    usual_rope: Mapping[str, object] | None = None


def build_moe(
    reader: ConfigReader, name: str, config: Mapping[str, object], *, family: str
) -> Architecture:
    """Build a mixture of experts of one of `FAMILIES`."""
    del config
    traits = FAMILIES[family]
    if family == "dbrx":
        reader = _flat_dbrx(reader)
    number = reader.layers()
    attention = attentions(reader, number, traits.heads)
    layers = tuple(
        Layer(mixer=mixer, mlp=mlp, norms=traits.norms)
        for mixer, mlp in zip(attention, mlps(reader, number, traits), strict=True)
    )
    architecture = stack.decoder(
        reader,
        name,
        family,
        layers,
        rope=common.rope(reader, head_dim=attention[0].head_dim, usual=traits.usual_rope),
        final_norm=traits.final_norm,
    )
    architecture = replace(architecture, head_bias=is_on(reader, traits.head_bias))
    return stack.predicting_ahead(reader, architecture)


def build_mimo(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """MiMo-V2: values shorter than keys; layers that slide have sinks and twice the KV heads."""
    architecture = build_moe(reader, name, config, family="mimo_v2_flash")
    value_dim, layers = reader.size("v_head_dim"), list[Layer]()
    for layer in architecture.layers:
        mixer = layer.mixer
        assert isinstance(mixer, Attention), mixer
        slides = mixer.window is not None
        mixer = replace(
            mixer,
            value_head_dim=value_dim,
            num_kv_heads=mixer.num_kv_heads * (2 if slides else 1),
            sinks=slides,
        )
        layers.append(replace(layer, mixer=mixer))
    return replace(architecture, layers=tuple(layers))


def attentions(reader: ConfigReader, layers: int, heads: Heads) -> tuple[Attention, ...]:
    """The attention of every layer; they differ in their windows."""
    windows = heads.windows(reader, layers)
    bias, output_bias = is_on(reader, heads.bias), is_on(reader, heads.output_bias)
    one = Attention(
        num_heads=reader.size("num_attention_heads"),
        num_kv_heads=common.kv_heads(reader),
        head_dim=common.head_dim(reader),
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=output_bias,
        qk_norm=RMS_NORM if is_on(reader, heads.qk_norm) else None,
        qk_norm_over=heads.qk_norm_over,
        output_gate=heads.output_gate,
        sinks=heads.sinks,
    )
    all_rotary = heads.rotary == "all" or not any(windows)
    return tuple(
        replace(
            one,
            window=window,
            chunked=heads.chunked and window is not None,
            rotary=all_rotary or window is not None,
        )
        for window in windows
    )


def mlps(reader: ConfigReader, layers: int, traits: MoeFamily) -> tuple[Mlp | Experts, ...]:
    """The experts of every sparse layer and the MLP of every dense one."""
    sparse = traits.sparse(reader, layers)
    bias = is_on(reader, traits.mlp_bias)
    dense = None
    if not all(sparse):
        dense = stack.gated_mlp(reader.size(traits.dense_d_ff), bias=bias)
    experts = experts_of(reader, layers, traits, bias=bias) if any(sparse) else ()
    found: list[Mlp | Experts] = []
    for layer, is_sparse in enumerate(sparse):
        if is_sparse or dense is None:
            found.append(experts[layer])
        else:
            found.append(dense)
    return tuple(found)


def experts_of(
    reader: ConfigReader, layers: int, traits: MoeFamily, *, bias: bool
) -> tuple[Experts, ...]:
    """The experts that each layer has if it is sparse."""
    d_ff = reader.size(traits.expert_d_ff)
    width = traits.shared(reader, d_ff) if traits.shared else 0
    shared = stack.gated_mlp(width, bias=bias) if width else None
    numbers = stack.per_layer(reader, traits.experts, layers)
    used = stack.per_layer(reader, traits.per_token, layers)
    for number, k in zip(numbers, used, strict=True):
        if k > number:
            reader.refuse(traits.per_token, f"is {k:,}, more than the {number:,} experts there are")
    return tuple(
        Experts(
            num_experts=number,
            experts_per_token=k,
            d_ff=d_ff,
            bias=traits.expert_bias,
            router_bias=traits.router_bias,
            correction_bias=traits.correction_bias,
            shared=shared,
            shared_gate=traits.shared_gate and shared is not None,
        )
        for number, k in zip(numbers, used, strict=True)
    )


def times_expert(key: str) -> Width:
    """A shared MLP as wide as the number of experts that stands under `key`."""
    return lambda reader, expert_d_ff: reader.count(key) * expert_d_ff


def width_under(key: str) -> Width:
    """A shared MLP whose width stands under `key`; 0 for none."""
    return lambda reader, _: reader.count(key)


def one_expert(_: ConfigReader, expert_d_ff: int) -> int:
    """A shared MLP that is as wide as one expert."""
    return expert_d_ff


DBRX_PARTS: dict[str, dict[str, int]] = {
    "attn_config": {"kv_n_heads": 1},
    "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1},
}


def _flat_dbrx(reader: ConfigReader) -> ConfigReader:
    """Lift DBRX's two nested objects; their defaults are those of DbrxFFNConfig and its like."""
    flat: dict[str, object] = {}
    for part, defaults in DBRX_PARTS.items():
        inner = reader.mapping(part) or {}
        for key, default in defaults.items():
            if key not in inner:
                reader.fill(f"{part}.{key}", default)
            flat[key] = inner.get(key, default)
    return reader.narrowed({**flat, "num_key_value_heads": flat["kv_n_heads"], "head_dim": None})


_ALL_BIAS = Heads(bias="attention_bias", output_bias="attention_bias")
_NORMED = replace(_ALL_BIAS, qk_norm=True)
_GLM = MoeFamily(
    experts="n_routed_experts",
    heads=Heads(bias="attention_bias", qk_norm="use_qk_norm"),
    sparse=stack.after_first("first_k_dense_replace"),
    shared=times_expert("n_shared_experts"),
    correction_bias=True,
)
_LOCAL = MoeFamily(experts="num_local_experts", expert_d_ff="intermediate_size")

FAMILIES: dict[str, MoeFamily] = {
    "mixtral": replace(_LOCAL, heads=Heads(windows=stack.same_window)),
    "phimoe": replace(
        _LOCAL,
        heads=replace(_ALL_BIAS, windows=stack.same_window),
        norms=(LAYER_NORM, LAYER_NORM),
        final_norm=LAYER_NORM,
        head_bias="lm_head_bias",
    ),
    "granitemoe": replace(_LOCAL, heads=_ALL_BIAS),
    "granitemoeshared": replace(
        _LOCAL, heads=_ALL_BIAS, shared=width_under("shared_intermediate_size")
    ),
    "minimax_m2": replace(
        _LOCAL, heads=Heads(qk_norm=True, qk_norm_over="all"), correction_bias=True
    ),
    "gpt_oss": replace(
        _LOCAL,
        heads=replace(_ALL_BIAS, sinks=True, windows=stack.alternating(2)),
        expert_bias=True,
        router_bias=True,
        usual_rope={"rope_type": "yarn", "factor": 32.0},
    ),
    "llama4_text": replace(
        _LOCAL,
        dense_d_ff="intermediate_size_mlp",
        heads=replace(_ALL_BIAS, windows=moe_rules.llama4_chunks, chunked=True, rotary="windowed"),
        sparse=moe_rules.llama4_sparse,
        shared=one_expert,
    ),
    "dbrx": MoeFamily(
        experts="moe_num_experts",
        per_token="moe_top_k",
        expert_d_ff="ffn_hidden_size",
        norms=(SCALE_ONLY_NORM, SCALE_ONLY_NORM),
        final_norm=SCALE_ONLY_NORM,
    ),
    "olmoe": MoeFamily(expert_d_ff="intermediate_size", heads=replace(_NORMED, qk_norm_over="all")),
    "flex_olmo": MoeFamily(
        expert_d_ff="intermediate_size", heads=replace(_NORMED, qk_norm_over="all")
    ),
    "qwen2_moe": MoeFamily(
        heads=Heads(bias="qkv_bias", windows=moe_rules.qwen2_windows),
        sparse=stack.every_step,
        shared=width_under("shared_expert_intermediate_size"),
        shared_gate=True,
    ),
    "qwen3_moe": MoeFamily(
        heads=replace(_NORMED, windows=moe_rules.qwen3_windows), sparse=stack.every_step
    ),
    "glm4_moe": _GLM,
    "sarvam_moe": _GLM,
    "solar_open": replace(_GLM, heads=Heads(bias="attention_bias"), sparse=stack.all_layers),
    "dots1": replace(_GLM, heads=replace(_NORMED, windows=moe_rules.dots_windows)),
    "exaone_moe": replace(
        _GLM,
        experts="num_experts",
        heads=Heads(
            qk_norm=True, windows=stack.alternating("sliding_window_pattern"), rotary="windowed"
        ),
        sparse=stack.by_mlp_layer_types("first_k_dense_replace"),
        shared=times_expert("num_shared_experts"),
    ),
    "hy_v3": replace(
        _GLM,
        experts="num_experts",
        heads=_NORMED,
        sparse=stack.by_mlp_layer_types(1),
        shared=times_expert("num_shared_experts"),
        mlp_bias="mlp_bias",
    ),
    "ernie4_5_moe": MoeFamily(
        experts="moe_num_experts",
        per_token="moe_k",
        heads=Heads(bias="use_bias", output_bias="use_bias"),
        sparse=moe_rules.ernie_sparse,
        shared=times_expert("moe_num_shared_experts"),
        mlp_bias="use_bias",
        head_bias="use_bias",
        correction_bias=True,
    ),
    "hunyuan_v1_moe": MoeFamily(
        per_token="moe_topk",
        expert_d_ff="intermediate_size",
        heads=_NORMED,
        shared=one_expert,
    ),
    "cohere2_moe": MoeFamily(
        expert_d_ff="intermediate_size",
        dense_d_ff="prefix_dense_intermediate_size",
        heads=replace(_ALL_BIAS, windows=moe_rules.cohere_windows, rotary="windowed"),
        sparse=stack.by_mlp_layer_types("first_k_dense_replace"),
        shared=times_expert("num_shared_experts"),
        norms=(SCALE_ONLY_NORM,),
        final_norm=SCALE_ONLY_NORM,
        usual_rope={"rope_theta": 10000.0},
    ),
    "mimo_v2_flash": replace(
        _GLM,
        heads=Heads(bias="attention_bias", windows=moe_rules.mimo_windows),
        sparse=stack.by_mlp_layer_types(1),
        shared=None,
        usual_rope={
            "full_attention": {"rope_theta": 5000000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_theta": 10000.0, "partial_rotary_factor": 0.334},
        },
    ),
    "flint": MoeFamily(
        heads=replace(_NORMED, windows=moe_rules.flint_windows, sinks=True),
        sparse=moe_rules.flint_sparse,
        shared=width_under("shared_expert_intermediate_size"),
    ),
    "mellum": MoeFamily(
        experts="num_local_experts",
        heads=replace(_NORMED, windows=stack.alternating(0)),
        sparse=stack.by_mlp_layer_types(0),
        usual_rope={
            "full_attention": {"rope_theta": 500000.0},
            "sliding_attention": {"rope_theta": 10000.0},
        },
    ),
    "granitemoe_swa": replace(
        _LOCAL,
        heads=replace(_ALL_BIAS, windows=stack.alternating(4, first=0), sinks=True),
        shared=width_under("shared_intermediate_size"),
    ),
    "afmoe": MoeFamily(
        heads=replace(
            _NORMED,
            output_gate=True,
            windows=stack.alternating("global_attn_every_n_layers"),
            rotary="windowed",
        ),
        sparse=stack.after_first("num_dense_layers"),
        shared=times_expert("num_shared_experts"),
        correction_bias=True,
        norms=(RMS_NORM,) * 4,
    ),
}

BUILDERS: dict[str, Builder] = {
    **{family: partial(build_moe, family=family) for family in FAMILIES},
    "mimo_v2_flash": build_mimo,
}
