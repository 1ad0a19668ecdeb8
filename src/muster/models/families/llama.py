"""LLaMA and the families that are LLaMA with a flag: RMS norms, rotary GQA, gated MLP."""

from collections.abc import Mapping

from muster.models.architecture import Architecture, Attention, Layer, Mlp
from muster.models.families import common
from muster.models.reader import ConfigReader


def build_llama(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """LLaMA 1 to 3.3 and the many models published under its class."""
    del config
    bias, mlp_bias = reader.flag("attention_bias"), reader.flag("mlp_bias")
    layer = Layer(
        mixer=Attention(
            num_heads=reader.size("num_attention_heads"),
            num_kv_heads=common.kv_heads(reader),
            head_dim=common.head_dim(reader),
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            output_bias=bias,
        ),
        mlp=Mlp(d_ff=reader.size("intermediate_size"), up_bias=mlp_bias, down_bias=mlp_bias),
    )
    return Architecture(
        name=name,
        family="llama",
        d_model=reader.size("hidden_size"),
        vocab_size=reader.size("vocab_size"),
        layers=(layer,) * reader.layers(),
        tied_embeddings=reader.flag("tie_word_embeddings"),
        context_length=reader.optional_size("max_position_embeddings"),
        rope=common.rope(reader),
        filled_in=tuple(reader.filled_in.items()),
        notes=tuple(reader.notes),
    )


BUILDERS = {"llama": build_llama}
