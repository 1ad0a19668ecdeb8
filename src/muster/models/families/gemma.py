"""Gemma 1 to 4: wide heads, norms before and after, local and global layers, extra streams.

Sources: Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786), and the model classes of Hugging
Face transformers 5 (modeling_gemma*.py) for Gemma 3n and 4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from muster.models.architecture import (
    RMS_NORM,
    Architecture,
    Attention,
    Experts,
    ExtraWeight,
    Layer,
    Mlp,
    Tower,
)
from muster.models.defaults import class_defaults
from muster.models.families import common, dense, stack, towers
from muster.models.families.dense import Builder, Traits
from muster.models.reader import ConfigReader

BIDIRECTIONAL = (("use_bidirectional_attention", "an encoder that sees the whole sequence"),)

_GEMMA = Traits(qkv_bias="attention_bias", output_bias="attention_bias", must_be_off=BIDIRECTIONAL)

FAMILIES = {
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4, windows=stack.alternating(2)),
    "vaultgemma": replace(_GEMMA, windows=stack.alternating(2), must_be_off=()),
    "gemma3_text": replace(
        _GEMMA, norms=4, qk_norm=RMS_NORM, windows=stack.alternating("sliding_window_pattern")
    ),
}


type TowerOf = Callable[[ConfigReader, int], Tower]

TOWERS: dict[str, dict[str, TowerOf]] = {
    "gemma3": {"vision_config": towers.siglip_vision},
    "gemma4": {"vision_config": towers.gemma4_vision, "audio_config": towers.gemma4_audio},
}


def build_gemma3(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Gemma 3's text decoder, with the vision tower where the config wraps one."""
    text = dense.build_dense(reader, name, "gemma3_text", FAMILIES["gemma3_text"])
    return _wrapped(reader, config, "gemma3", text)


def build_gemma4(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Gemma 4's text decoder, with the vision and audio towers where the config wraps them."""
    return _wrapped(reader, config, "gemma4", _gemma4_text(reader, name))


def _wrapped(
    reader: ConfigReader, config: Mapping[str, object], wrapper: str, text: Architecture
) -> Architecture:
    """Add a wrapper's towers; its own flag, not the text part's, says whether the head is tied."""
    if config.get("model_type") != wrapper:
        return text
    outer = ConfigReader(config, class_defaults(wrapper), where=reader.where)
    tied = outer.flag("tie_word_embeddings")
    found: list[Tower] = []
    for key, tower in TOWERS[wrapper].items():
        absent_is_none = wrapper == "gemma4" and config.get(key) is None
        if not absent_is_none:
            part = towers.part_reader(reader, config, key)
            found.append(tower(part, text.d_model))
            for filled, value in part.filled_in.items():
                reader.fill(f"{key}.{filled}", value)
    return replace(text, tied_embeddings=tied, towers=tuple(found))


@dataclass(frozen=True, kw_only=True)
class PerLayerInputs:
    """Small embeddings of every token that each layer mixes in (Gemma 3n, Gemma 4 E models)."""

    width: int
    vocab_size: int

    def layer_weights(self, d_model: int) -> tuple[ExtraWeight, ...]:
        """What one layer needs to mix its own in."""
        return (
            _matrix("per_layer_input.gate", (d_model, "d_model"), (self.width, "per_layer")),
            _matrix("per_layer_input.out", (self.width, "per_layer"), (d_model, "d_model")),
        )

    def model_weights(self, d_model: int, layers: int) -> tuple[ExtraWeight, ...]:
        """The table that is looked up, and the projection of the plain embedding beside it."""
        all_layers = (layers * self.width, "layers_per_layer")
        return (
            _vector("per_layer_embedding", (self.vocab_size, "vocab"), all_layers),
            _matrix("per_layer_projection", (d_model, "d_model"), all_layers),
            _vector("per_layer_projection.norm", (self.width, "per_layer")),
        )


def _per_layer_inputs(reader: ConfigReader) -> PerLayerInputs:
    return PerLayerInputs(
        width=reader.count("hidden_size_per_layer_input"),
        vocab_size=reader.size("vocab_size_per_layer_input"),
    )


def _gemma4_text(reader: ConfigReader, name: str) -> Architecture:
    if reader.raw("use_bidirectional_attention") == "all":
        reader.refuse("use_bidirectional_attention", f"is all: {BIDIRECTIONAL[0][1]}")
    number, d_model = reader.layers(), reader.size("hidden_size")
    kinds = list(stack.layer_kinds(reader, number, stack.full_every(6)))
    if kinds[-1] != "full":
        kinds[-1] = "full"
        reader.notes.append("the last layer has full attention, as the class insists")
    windows = stack.windows_by_kind(reader, tuple(kinds))
    own_kv = _own_kv(reader, number)
    has_inputs = (reader.optional_count("hidden_size_per_layer_input") or 0) > 0
    inputs = _per_layer_inputs(reader) if has_inputs else None
    experts = reader.flag("enable_moe_block")
    layers = tuple(
        Layer(
            mixer=replace(_gemma4_attention(reader, kind, layer), window=window, own_kv=own),
            mlp=_gemma4_mlp(reader, experts=experts, shared_kv=not own),
            norms=(RMS_NORM,) * (4 + has_inputs + 3 * experts),
            extra=_gemma4_extra(reader, inputs, d_model, experts=experts),
        )
        for layer, (kind, window, own) in enumerate(zip(kinds, windows, own_kv, strict=True))
    )
    rope = common.rope(
        reader,
        usual={
            "sliding_attention": {"rope_theta": 10000.0},
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "proportional"},
        },
    )
    decoder = stack.decoder(reader, name, "gemma4_text", layers, rope=rope)
    return replace(decoder, extra=inputs.model_weights(d_model, number) if inputs else ())


def _gemma4_attention(reader: ConfigReader, kind: str, layer: int) -> Attention:
    """Full-attention layers have their own head size and, where values are keys, their own K.

    Files that transformers 5 has saved say so layer by layer instead, in `per_layer_config`.
    """
    bias = reader.flag("attention_bias")
    values_are_keys = kind == "full" and reader.flag("attention_k_eq_v")
    kv_heads, head_dim = None, "head_dim"
    if (overrides := reader.mapping("per_layer_config")) is not None:
        own = overrides.get(str(layer), {})
        if not isinstance(own, Mapping):
            reader.refuse("per_layer_config", "must hold an object for each layer that it names")
        reader = reader.narrowed(own)
    elif kind == "full":
        head_dim = "global_head_dim"
        if values_are_keys:
            kv_heads = reader.optional_size("num_global_key_value_heads")
    return Attention(
        num_heads=reader.size("num_attention_heads"),
        num_kv_heads=kv_heads or common.kv_heads(reader),
        head_dim=reader.size(head_dim),
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=bias,
        qk_norm=RMS_NORM,
        own_value=not values_are_keys,
    )


def _gemma4_mlp(reader: ConfigReader, *, experts: bool, shared_kv: bool) -> Mlp | Experts:
    """The dense MLP, and beside it (not instead) the experts: so it is their shared expert."""
    wide = shared_kv and reader.flag("use_double_wide_mlp")
    mlp = Mlp(d_ff=reader.size("intermediate_size") * (2 if wide else 1))
    if not experts:
        return mlp
    return Experts(
        num_experts=reader.size("num_experts"),
        experts_per_token=reader.size("top_k_experts"),
        d_ff=reader.size("moe_intermediate_size"),
        shared=mlp,
    )


def _gemma4_extra(
    reader: ConfigReader, inputs: PerLayerInputs | None, d_model: int, *, experts: bool
) -> tuple[ExtraWeight, ...]:
    extra = [ExtraWeight(name="scalar", shape=(1,), dims=("one",), trainable=False)]
    if inputs:
        extra += inputs.layer_weights(d_model)
    if experts:
        extra.append(_vector("router.scale", (d_model, "d_model")))
        extra.append(_vector("router.expert_scale", (reader.size("num_experts"), "experts")))
    return tuple(extra)


def _own_kv(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """The last layers reuse the keys and values of the last layer of their kind that has any."""
    shared = reader.count("num_kv_shared_layers")
    if shared > layers:
        reader.refuse("num_kv_shared_layers", f"is {shared:,}, more than the {layers:,} layers")
    return tuple(layer < layers - shared for layer in range(layers))


def build_gemma3n(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Gemma 3n's text decoder: AltUp streams (arXiv:2301.13310), LAuReL (arXiv:2411.07501)."""
    del config
    number, d_model = reader.layers(), reader.size("hidden_size")
    bias, d_ff = reader.flag("attention_bias"), stack.per_layer(reader, "intermediate_size", number)
    kinds = stack.layer_kinds(reader, number, stack.full_every(5))
    windows, own_kv = stack.windows_by_kind(reader, kinds), _own_kv(reader, number)
    inputs, streams = _per_layer_inputs(reader), reader.size("altup_num_inputs")
    extra = (*_altup(d_model, streams), *_laurel(reader, d_model), *inputs.layer_weights(d_model))
    attention = Attention(
        num_heads=reader.size("num_attention_heads"),
        num_kv_heads=common.kv_heads(reader),
        head_dim=common.head_dim(reader),
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=bias,
        qk_norm=RMS_NORM,
    )
    layers = tuple(
        Layer(
            mixer=replace(attention, window=window, own_kv=own),
            mlp=Mlp(d_ff=width),
            norms=(RMS_NORM,) * 5,
            extra=extra,
        )
        for window, own, width in zip(windows, own_kv, d_ff, strict=True)
    )
    rope = common.rope(reader, head_dim=attention.head_dim)
    streams_in_and_out = ((streams - 1, "streams"), (d_model, "d_model"), (d_model, "d_model_out"))
    return replace(
        stack.decoder(reader, name, "gemma3n_text", layers, rope=rope),
        extra=(
            *inputs.model_weights(d_model, number),
            _matrix("altup.in", *streams_in_and_out),
            _matrix("altup.out", *streams_in_and_out),
        ),
    )


def _altup(d_model: int, streams: int) -> tuple[ExtraWeight, ...]:
    return (
        _matrix("altup.predict", (streams, "streams"), (streams**2, "stream_pairs")),
        _matrix("altup.correct", (streams, "streams"), (streams, "streams_out")),
        _matrix("altup.router", (d_model, "d_model"), (streams, "streams")),
        _vector("altup.router_norm", (d_model, "d_model")),
        _vector("altup.output_scale", (d_model, "d_model")),
    )


def _laurel(reader: ConfigReader, d_model: int) -> tuple[ExtraWeight, ...]:
    rank = reader.size("laurel_rank")
    return (
        _matrix("laurel.left", (d_model, "d_model"), (rank, "laurel")),
        _matrix("laurel.right", (rank, "laurel"), (d_model, "d_model")),
        _vector("laurel.norm", (d_model, "d_model")),
    )


def _matrix(name: str, *sizes: tuple[int, str]) -> ExtraWeight:
    return replace(_vector(name, *sizes), matmul=True)


def _vector(name: str, *sizes: tuple[int, str]) -> ExtraWeight:
    return ExtraWeight(
        name=name, shape=tuple(size for size, _ in sizes), dims=tuple(dim for _, dim in sizes)
    )


BUILDERS: dict[str, Builder] = {
    **dense.builders(FAMILIES),
    "gemma3_text": build_gemma3,
    "gemma4_text": build_gemma4,
    "gemma4_unified_text": build_gemma4,
    "gemma3n_text": build_gemma3n,
}
