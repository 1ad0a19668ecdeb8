"""The plain dense decoder, and what one family of it does its own way.

A family is a row of `Traits`; every default is LLaMA's. One builder reads any of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from muster.models.architecture import (
    RMS_NORM,
    Architecture,
    Attention,
    ExtraWeight,
    Layer,
    Mlp,
    Norm,
    Rope,
)
from muster.models.families import common
from muster.models.families.common import Switch, is_on
from muster.models.families.stack import WindowRule, no_window
from muster.models.reader import ConfigReader

type Builder = Callable[[ConfigReader, str, Mapping[str, object]], Architecture]
type Size = Callable[[ConfigReader], int]
type RotaryRule = Callable[[ConfigReader, tuple[int | None, ...]], tuple[bool, ...]]
type LayerExtras = Callable[[ConfigReader, Attention, Mlp], tuple[ExtraWeight, ...]]


def intermediate_size(reader: ConfigReader) -> int:
    """F as most families name it."""
    return reader.size("intermediate_size")


def all_rotary(_: ConfigReader, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Every layer rotates its queries and keys."""
    return (True,) * len(windows)


def no_extras(_reader: ConfigReader, _attention: Attention, _mlp: Mlp) -> tuple[ExtraWeight, ...]:
    """No weights beside those of every decoder."""
    return ()


def no_positions(_: ConfigReader) -> int:
    """No table of positions: they are rotated in, computed, or a bias of the scores."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What one dense family does its own way. A `Switch` is fixed, or the key that decides.

    Attributes:
        norm: the kind of all its norms of width D.
        norms: how many of them a layer has; two, four with norms after, one where attention and
            MLP run in parallel.
        final_norm: whether one stands before the head.
        embedding_norm: whether one stands after the embedding.
        qkv_bias: of the query, key and value projections.
        output_bias: of the projection out of attention.
        mlp_bias: of all matrices of the MLP.
        gated: whether the MLP has a gate (three matrices) or not (two).
        head_bias: of the output head, over the vocabulary.
        d_ff: F.
        head_dim: H.
        kv_heads: K.
        qk_norm: the norm of queries and keys, where `qk_norm_if` is on.
        sinks: whether each head has a learned logit beside its scores.
        windows: what each layer sees.
        rotary: which layers rotate; None for a family without rotary embedding.
        rotary_unless: a key that turns rotary embedding off (for ALiBi).
        usual_rope: `rope_parameters` of a file that states none.
        theta_key: the family's old name of the rotary base.
        share_key: the family's old name of the rotated share of H; `rotary_dim` counts numbers.
        usual_share: that share where a file states none and the class's table has none.
        positions: rows of a learned table of positions.
        context: the key of the context length.
        extras: further weights of each layer.
        must_be_off: flags that would build another architecture, with what it would be.
    """

    norm: Norm = RMS_NORM
    norms: int | Size = 2
    final_norm: Switch | Callable[[ConfigReader], bool] = True
    embedding_norm: bool = False
    qkv_bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    gated: bool = True
    head_bias: Switch = False
    d_ff: Size = intermediate_size
    head_dim: Size = common.head_dim
    kv_heads: Size = common.kv_heads
    qk_norm: Norm | None = None
    qk_norm_if: Switch = True
    qk_norm_over: Literal["head", "each_head", "all"] = "head"
    sinks: bool = False
    windows: WindowRule = no_window
    rotary: RotaryRule | None = all_rotary
    rotary_unless: Switch = False
    usual_rope: Mapping[str, object] | None = None
    theta_key: str = "rope_theta"
    share_key: str = "partial_rotary_factor"
    usual_share: float | None = None
    positions: Size = no_positions
    context: str = "max_position_embeddings"
    extras: LayerExtras = no_extras
    must_be_off: tuple[tuple[str, str], ...] = ()


def builders(families: Mapping[str, Traits]) -> dict[str, Builder]:
    """One builder for each row of a table of families."""
    return {family: builder(family, traits) for family, traits in families.items()}


def builder(family: str, traits: Traits) -> Builder:
    """The builder of one family."""

    def build(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
        del config
        return build_dense(reader, name, family, traits)

    return build


def build_dense(reader: ConfigReader, name: str, family: str, traits: Traits) -> Architecture:
    """Read a dense decoder of one family.

    Raises:
        BadInput: a key is missing, wrong, or asks for another architecture.
    """
    for key, what in traits.must_be_off:
        if reader.flag(key):
            reader.refuse(key, f"is true: {what} is not supported")
    return Architecture(
        name=name,
        family=family,
        d_model=reader.size("hidden_size"),
        vocab_size=reader.size("vocab_size"),
        layers=_layers(reader, traits),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        final_norm=_final_norm(reader, traits),
        embedding_norm=traits.norm if traits.embedding_norm else None,
        head_bias=is_on(reader, traits.head_bias),
        position_embeddings=traits.positions(reader),
        context_length=reader.optional_size(traits.context),
        rope=_rope(reader, traits),
    )


def _layers(reader: ConfigReader, traits: Traits) -> tuple[Layer, ...]:
    windows = traits.windows(reader, reader.layers())
    if traits.rotary is None or is_on(reader, traits.rotary_unless):
        rotary = (False,) * len(windows)
    else:
        rotary = traits.rotary(reader, windows)
    mlp_bias = is_on(reader, traits.mlp_bias)
    mlp = Mlp(d_ff=traits.d_ff(reader), gated=traits.gated, up_bias=mlp_bias, down_bias=mlp_bias)
    norms = (traits.norm,) * (
        traits.norms if isinstance(traits.norms, int) else traits.norms(reader)
    )
    kinds = {
        kind: Layer(
            mixer=(attention := _attention(reader, traits, window=kind[0], rotary=kind[1])),
            mlp=mlp,
            norms=norms,
            extra=traits.extras(reader, attention, mlp),
        )
        for kind in dict.fromkeys(zip(windows, rotary, strict=True))
    }
    return tuple(kinds[kind] for kind in zip(windows, rotary, strict=True))


def _attention(
    reader: ConfigReader, traits: Traits, *, window: int | None, rotary: bool
) -> Attention:
    bias = is_on(reader, traits.qkv_bias)
    return Attention(
        num_heads=reader.size("num_attention_heads"),
        num_kv_heads=traits.kv_heads(reader),
        head_dim=traits.head_dim(reader),
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=is_on(reader, traits.output_bias),
        qk_norm=traits.qk_norm if is_on(reader, traits.qk_norm_if) else None,
        qk_norm_over=traits.qk_norm_over,
        window=window,
        rotary=rotary,
        sinks=traits.sinks,
    )


def _final_norm(reader: ConfigReader, traits: Traits) -> Norm | None:
    wanted = traits.final_norm
    has_one = wanted(reader) if callable(wanted) else is_on(reader, wanted)
    return traits.norm if has_one else None


def _rope(reader: ConfigReader, traits: Traits) -> Rope | None:
    if traits.rotary is None or is_on(reader, traits.rotary_unless):
        return None
    if traits.usual_share is not None and not reader.has(traits.share_key):
        reader.fill(traits.share_key, traits.usual_share)
        reader = reader.narrowed({traits.share_key: traits.usual_share})
    return common.rope(
        reader,
        head_dim=traits.head_dim(reader),
        usual=traits.usual_rope,
        theta_key=traits.theta_key,
        share_key=traits.share_key,
    )
