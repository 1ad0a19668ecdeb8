"""DeciLM (nemotron-nas): a LLaMA whose blocks were each searched, shrunk or removed.

`block_configs` says of every layer how many query heads share a KV head and how wide its MLP is,
or that one of the two is not there. Facts: the published model code beside
nvidia/Llama-3_3-Nemotron-Super-49B-v1; transformers has no class of this family.
"""

from collections.abc import Mapping

from muster.errors import shorten
from muster.models.architecture import RMS_NORM, Architecture, Attention, Layer, Mlp
from muster.models.families import common
from muster.models.families.dense import Builder
from muster.models.reader import MAX_LAYERS, ConfigReader

FFN_MULTIPLE_OF = 256
CLASS_THETA = 10_000.0


def build_decilm(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Read a nemotron-nas model."""
    del config
    blocks = reader.raw("block_configs")
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MAX_LAYERS:
        reader.refuse("block_configs", "must be a list with one object a layer")
    if reader.has("num_hidden_layers") and reader.layers() != len(blocks):
        reader.refuse("block_configs", f"has {len(blocks)} entries for {reader.layers()} layers")
    return Architecture(
        name=name,
        family="nemotron-nas",
        d_model=reader.size("hidden_size"),
        vocab_size=reader.size("vocab_size"),
        layers=tuple(_block(reader, index, block) for index, block in enumerate(blocks)),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        context_length=reader.optional_size("max_position_embeddings"),
        rope=common.rope(
            reader, head_dim=common.head_dim(reader), usual={"rope_theta": CLASS_THETA}
        ),
    )


def ffn_width(ffn_mult: float, d_model: int) -> int:
    """F from its multiplier: two thirds of it times D, rounded up to a multiple of 256.

    >>> ffn_width(5.25, 8192)
    28672
    """
    width = int(2 * ffn_mult * d_model / 3)
    return -(-width // FFN_MULTIPLE_OF) * FFN_MULTIPLE_OF


def _block(reader: ConfigReader, index: int, block: object) -> Layer:
    where = f"block_configs[{index}]"
    attention, ffn = (_part(reader, where, block, part) for part in ("attention", "ffn"))
    mixer = _attention(reader, where, attention)
    mlp = _mlp(reader, where, ffn)
    present = sum(part is not None for part in (mixer, mlp))
    return Layer(mixer=mixer, mlp=mlp, norms=(RMS_NORM,) * present)


def _part(reader: ConfigReader, where: str, block: object, part: str) -> Mapping[str, object]:
    inner = block.get(part) if isinstance(block, Mapping) else None
    if not isinstance(inner, Mapping):
        reader.refuse(f"{where}.{part}", "must be an object")
    for other in ("replace_with_linear", "sparsify"):
        if inner.get(other):
            reader.refuse(f"{where}.{part}.{other}", "is set; such blocks are not supported")
    return inner


def _attention(
    reader: ConfigReader, where: str, attention: Mapping[str, object]
) -> Attention | None:
    if attention.get("no_op"):
        return None
    heads, group = reader.size("num_attention_heads"), attention.get("n_heads_in_group")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or heads % group:
        reader.refuse(
            f"{where}.attention.n_heads_in_group",
            f"is {shorten(group)}; it must divide num_attention_heads {heads:,}",
        )
    bias = reader.flag("attention_bias")
    return Attention(
        num_heads=heads,
        num_kv_heads=heads // group,
        head_dim=common.head_dim(reader),
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        output_bias=bias,
        window=_window(reader, where, attention),
    )


def _window(reader: ConfigReader, where: str, attention: Mapping[str, object]) -> int | None:
    key = f"{where}.attention.window_length"
    return reader.narrowed({key: attention.get("window_length")}).optional_size(key)


def _mlp(reader: ConfigReader, where: str, ffn: Mapping[str, object]) -> Mlp | None:
    if ffn.get("no_op"):
        return None
    key = f"{where}.ffn.ffn_mult"
    multiple = reader.narrowed({key: ffn.get("ffn_mult")}).number(key)
    if not 0 < multiple <= 1000:
        reader.refuse(key, f"is {multiple:g}; it must be positive")
    bias = reader.flag("mlp_bias")
    return Mlp(
        d_ff=max(FFN_MULTIPLE_OF, ffn_width(multiple, reader.size("hidden_size"))),
        up_bias=bias,
        down_bias=bias,
    )


BUILDERS: dict[str, Builder] = {"nemotron-nas": build_decilm}
