"""The GPT line and its kin: layer norms with biases, plain MLPs, learned or ALiBi positions.

Facts: the model and config classes of transformers 5.24.0, one file a family there.
"""

from collections.abc import Mapping
from dataclasses import replace

from muster.errors import shorten
from muster.models.architecture import (
    LAYER_NORM,
    Architecture,
    Attention,
    ExtraWeight,
    Norm,
    Rope,
)
from muster.models.families import common
from muster.models.families.dense import Builder, Traits, build_dense, builders
from muster.models.families.stack import full_every, layer_kinds, same_window
from muster.models.reader import ConfigReader

SCALED_LAYER = Norm(kind="layer")  # without a bias
BARE_LAYER = Norm(kind="layer", scale=False)  # no learned vector


def inner_or_4x(reader: ConfigReader) -> int:
    """F under GPT-2's name; null means 4 D."""
    return reader.optional_size("n_inner") or four_times(reader)


def intermediate_or_4x(reader: ConfigReader) -> int:
    """F; null means 4 D."""
    return reader.optional_size("intermediate_size") or four_times(reader)


def ffn_hidden_or_4x(reader: ConfigReader) -> int:
    """F under Falcon's name; null means 4 D."""
    return reader.optional_size("ffn_hidden_size") or four_times(reader)


def four_times(reader: ConfigReader) -> int:
    """F = 4 D."""
    return 4 * reader.size("hidden_size")


def ffn_dim(reader: ConfigReader) -> int:
    """F under fairseq's name."""
    return reader.size("ffn_dim")


def japanese_neox_d_ff(reader: ConfigReader) -> int:
    """F as a multiple of D, rounded down."""
    multiple = reader.number("intermediate_multiple_size")
    if not 0 < multiple <= 1000:
        reader.refuse("intermediate_multiple_size", f"is {multiple:g}; it must be positive")
    return max(1, int(reader.size("hidden_size") * multiple))


def position_table(reader: ConfigReader) -> int:
    """One row a position."""
    return reader.size("max_position_embeddings")


def position_table_and_2(reader: ConfigReader) -> int:
    """One row a position, after two that fairseq kept for padding."""
    return reader.size("max_position_embeddings") + 2


def multi_query_or_all(reader: ConfigReader) -> int:
    """K: one head with `multi_query`, else N."""
    return 1 if reader.flag("multi_query") else reader.size("num_attention_heads")


def falcon_kv_heads(reader: ConfigReader) -> int:
    """K: stated only for the new architecture; else 1 with `multi_query`, or N without."""
    if reader.flag("new_decoder_architecture"):
        return common.kv_heads(reader, "num_kv_heads")
    return multi_query_or_all(reader)


def falcon_norms(reader: ConfigReader) -> int:
    """Two norms where attention and MLP follow each other, or have one each beside each other."""
    if not reader.flag("parallel_attn"):
        return 2
    stated = reader.optional_size("num_ln_in_parallel_attn")
    usual = 2 if reader.flag("new_decoder_architecture") else 1
    return 2 if (stated or usual) == 2 else 1


def one_if_parallel(reader: ConfigReader) -> int:
    """One norm feeds attention and MLP where they run in parallel."""
    return 1 if reader.flag("use_parallel_residual") else 2


def gpt_neo_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Global and local layers as `attention_types` lists them: [[["global", "local"], 12]]."""
    groups = reader.raw("attention_types")
    if groups is None:
        groups = [[["global", "local"], 12]]
        reader.fill("attention_types", groups)
    kinds: list[object] = []
    for group in groups if isinstance(groups, list) else [None]:
        match group:
            case [list(names), int(times)] if 0 <= times * len(names) <= layers:
                kinds += names * times
            case _:
                reader.refuse("attention_types", f"has {shorten(group)} for {layers} layers")
    if len(kinds) != layers or not set(map(repr, kinds)) <= {"'global'", "'local'"}:
        reader.refuse(
            "attention_types", f"lists {len(kinds)} layers, global or local, for {layers} layers"
        )
    window = reader.size("window_size") if "local" in kinds else None
    return tuple(window if kind == "local" else None for kind in kinds)


def gptj_rotary_dim(reader: ConfigReader) -> int:
    """`rotary_dim` counts the rotated numbers; null rotates the whole head."""
    head = common.whole_head_dim(reader)
    return min(head, reader.optional_size("rotary_dim") or head)


def opt_final_norm(reader: ConfigReader) -> bool:
    """Only a decoder that norms before its blocks ends with one."""
    return reader.flag("do_layer_norm_before") and not reader.flag("_remove_final_layer_norm")


NO_CROSS_ATTENTION = (("add_cross_attention", "attention to an encoder"),)

# LayerNorm with bias, plain MLP with biases, full heads; positions differ.
CLASSIC = Traits(
    norm=LAYER_NORM,
    gated=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    head_dim=common.whole_head_dim,
    kv_heads=common.as_many_kv_heads,
)
LEARNED = replace(CLASSIC, rotary=None, positions=position_table)
GPT2 = replace(LEARNED, d_ff=inner_or_4x, must_be_off=NO_CROSS_ATTENTION)
GPTJ = replace(
    CLASSIC,
    norms=1,
    qkv_bias=False,
    output_bias=False,
    head_bias=True,
    d_ff=inner_or_4x,
    rotary=None,
)
PHI = replace(
    CLASSIC,
    norms=1,
    head_bias=True,
    head_dim=common.head_dim,
    kv_heads=common.kv_heads,
    qk_norm=LAYER_NORM,
    qk_norm_if="qk_layernorm",
)

FAMILIES = {
    "openai-gpt": replace(LEARNED, d_ff=four_times, final_norm=False),
    "gpt2": GPT2,
    "gpt-sw3": GPT2,
    "gpt_bigcode": replace(GPT2, kv_heads=multi_query_or_all),
    "gpt_neo": replace(LEARNED, d_ff=intermediate_or_4x, qkv_bias=False, windows=gpt_neo_windows),
    "biogpt": replace(LEARNED, positions=position_table_and_2),
    "xglm": replace(CLASSIC, rotary=None, d_ff=ffn_dim, must_be_off=NO_CROSS_ATTENTION),
    "gpt_neox": replace(
        CLASSIC,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        theta_key="rotary_emb_base",
        share_key="rotary_pct",
        usual_share=0.25,
    ),
    "phi": PHI,
    "persimmon": replace(
        CLASSIC, qk_norm=LAYER_NORM, qk_norm_if="qk_layernorm", head_dim=common.derived_head_dim
    ),
    "starcoder2": replace(
        CLASSIC,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        head_dim=common.head_dim,
        kv_heads=common.kv_heads,
        windows=same_window,
    ),
    "stablelm": Traits(
        norm=LAYER_NORM,
        norms=one_if_parallel,
        qkv_bias="use_qkv_bias",
        head_dim=common.derived_head_dim,
        qk_norm=SCALED_LAYER,
        qk_norm_if="qk_layernorm",
        qk_norm_over="each_head",
    ),
    "bloom": replace(
        CLASSIC, d_ff=four_times, rotary=None, embedding_norm=True, context="seq_length"
    ),
    "mpt": replace(
        CLASSIC,
        norm=SCALED_LAYER,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        d_ff=four_times,
        rotary=None,
        context="max_seq_len",
    ),
    "falcon": replace(
        CLASSIC,
        norms=falcon_norms,
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        d_ff=ffn_hidden_or_4x,
        kv_heads=falcon_kv_heads,
        rotary_unless="alibi",
    ),
}


def build_gptj(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """GPT-J and CodeGen: rotary embedding of a fixed base over `rotary_dim` numbers of a head."""
    del config
    dense = build_dense(reader, name, "gptj", GPTJ)
    return replace(dense, rope=Rope(theta=1e4, rotary_dim=gptj_rotary_dim(reader)))


def build_bloom(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """BLOOM, whose old files call D `n_embed`."""
    del config
    return build_dense(_old_width(reader), name, "bloom", FAMILIES["bloom"])


def build_falcon(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Falcon, whose old files call D `n_embed`."""
    del config
    return build_dense(_old_width(reader), name, "falcon", FAMILIES["falcon"])


def _old_width(reader: ConfigReader) -> ConfigReader:
    width = reader.optional_size("n_embed") if reader.has("n_embed") else None
    return reader if width is None else reader.narrowed({"hidden_size": width})


def build_mpt(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """MPT as its model class builds it: multi-head attention, ALiBi, no biases anywhere."""
    del config
    attention = reader.mapping("attn_config") if reader.has("attn_config") else None
    ignored = {
        "expansion_ratio": reader.raw("expansion_ratio") not in (None, 4),
        "no_bias": reader.raw("no_bias") is False,
        "learned_pos_emb": reader.has("learned_pos_emb") and reader.flag("learned_pos_emb"),
        "attn_config.qk_ln": bool(attention and attention.get("qk_ln")),
    }
    for key in (key for key, differs in ignored.items() if differs):
        reader.notes.append(f"{key} is set, and ignored: Hugging Face's MPT class does not read it")
    if attention and attention.get("attn_type", "multihead_attention") != "multihead_attention":
        reader.refuse("attn_config.attn_type", "must be multihead_attention, all the class builds")
    return build_dense(reader, name, "mpt", FAMILIES["mpt"])


def build_japanese_neox(
    reader: ConfigReader, name: str, config: Mapping[str, object]
) -> Architecture:
    """GPT-NeoX Japanese: no biases but that of attention's output in the last layer."""
    del config
    dense = build_dense(reader, name, "gpt_neox_japanese", JAPANESE_NEOX)
    last = dense.layers[-1]
    assert isinstance(last.mixer, Attention)
    biased = replace(last, mixer=replace(last.mixer, output_bias=True))
    return replace(dense, layers=(*dense.layers[:-1], biased))


def build_opt(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """OPT: its embedding may be narrower than D, its norms bare, its last norm missing (350M)."""
    del config
    affine = reader.flag("layer_norm_elementwise_affine")
    traits = replace(OPT, norm=LAYER_NORM if affine else BARE_LAYER)
    width = reader.optional_size("word_embed_proj_dim")
    return replace(build_dense(reader, name, "opt", traits), embedding_dim=width)


def build_modernbert(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """ModernBERT's decoder: no first norm in the first layer, and a dense layer before the head."""
    del config
    norm = Norm(kind="layer", bias=reader.flag("norm_bias"))
    dense = build_dense(reader, name, "modernbert-decoder", replace(MODERNBERT, norm=norm))
    first = replace(dense.layers[0], norms=(norm,))
    d_model = dense.d_model
    vector: dict[str, tuple[int, ...]] = {"head.norm": (d_model,)}
    if norm.bias:
        vector["head.norm.bias"] = (d_model,)
    if reader.flag("classifier_bias"):
        vector["head.dense.bias"] = (d_model,)
    extra = (
        ExtraWeight(
            name="head.dense",
            shape=(d_model, d_model),
            dims=("d_model", "d_model_out"),
            matmul=True,
        ),
        *(ExtraWeight(name=key, shape=size, dims=("d_model",)) for key, size in vector.items()),
    )
    return replace(dense, layers=(first, *dense.layers[1:]), extra=extra)


def modernbert_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Full attention every few layers, from the first on; half of `local_attention` elsewhere."""
    every = reader.size("global_attn_every_n_layers")
    kinds = layer_kinds(reader, layers, full_every(every, first=0))
    half = reader.count("local_attention") // 2
    return tuple((half or None) if kind == "sliding" else None for kind in kinds)


JAPANESE_NEOX = replace(
    CLASSIC,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    d_ff=japanese_neox_d_ff,
    theta_key="rotary_emb_base",
    share_key="rotary_pct",
    usual_share=1.0,
)
OPT = replace(
    LEARNED,
    qkv_bias="enable_bias",
    output_bias="enable_bias",
    mlp_bias="enable_bias",
    d_ff=ffn_dim,
    positions=position_table_and_2,
    final_norm=opt_final_norm,
)
MODERNBERT = Traits(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    head_bias="decoder_bias",
    embedding_norm=True,
    head_dim=common.whole_head_dim,
    kv_heads=common.as_many_kv_heads,
    windows=modernbert_windows,
    theta_key="global_rope_theta",
)

BUILDERS: dict[str, Builder] = {
    **builders(FAMILIES),
    "gptj": build_gptj,
    "codegen": build_gptj,
    "bloom": build_bloom,
    "falcon": build_falcon,
    "mpt": build_mpt,
    "gpt_neox_japanese": build_japanese_neox,
    "opt": build_opt,
    "modernbert-decoder": build_modernbert,
}
