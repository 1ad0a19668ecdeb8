"""Towers beside a text decoder: vision and audio encoders with their projectors, as weight lists.

Layers of a tower are folded into one weight with a leading `layers` dim: a tower is counted and
stored, but no plan splits it.
"""

from collections.abc import Mapping

from muster.models.architecture import ExtraWeight, Tower
from muster.models.defaults import class_defaults
from muster.models.reader import ConfigReader


def part_reader(reader: ConfigReader, config: Mapping[str, object], key: str) -> ConfigReader:
    """A reader of a wrapper's nested part, under the defaults of that part's class."""
    inner = config.get(key)
    wrapper_type = config.get("model_type")
    parts = class_defaults(wrapper_type if isinstance(wrapper_type, str) else "").get("sub_configs")
    part_type = parts.get(key) if isinstance(parts, Mapping) else None
    if inner is not None and not isinstance(inner, Mapping):
        reader.refuse(key, "must be an object")
    defaults = class_defaults(part_type) if isinstance(part_type, str) else {}
    return ConfigReader(inner or {}, defaults, where=f"{reader.where}: {key}")


def siglip_vision(vision: ConfigReader, d_model: int) -> Tower:
    """Gemma 3's SigLIP encoder (arXiv:2303.15343) with its projector into D = `d_model`."""
    D, F = vision.size("hidden_size"), vision.size("intermediate_size")  # noqa: N806
    layers, patch = vision.layers(), vision.size("patch_size")
    patches = (vision.size("image_size") // patch) ** 2
    weights = [
        _matrix("patches", patch * patch * vision.size("num_channels"), D),
        _vector("patches.bias", D),
        _vector("positions", patches, D),
        _matrix("layers.attention", layers, 4, D, D),
        _vector("layers.attention.bias", layers, 4, D),
        _matrix("layers.mlp", layers, 2, D, F),
        _vector("layers.mlp.bias", layers, D + F),
        _vector("layers.norms", layers, 4, D),
        _vector("final_norm", 2, D),
        _matrix("projector", D, d_model),
        _vector("projector.norm", D),
    ]
    if vision.flag("vision_use_head"):
        weights += [
            _vector("head.probe", D),
            _matrix("head.attention", 4, D, D),
            _vector("head.attention.bias", 4, D),
            _vector("head.norm", 2, D),
            _matrix("head.mlp", 2, D, F),
            _vector("head.mlp.bias", D + F),
        ]
    return Tower(name="vision", weights=tuple(weights))


def gemma4_vision(vision: ConfigReader, d_model: int) -> Tower:
    """Gemma 4's vision encoder: rotary attention over patches, gated MLPs, four norms a layer."""
    D, F = vision.size("hidden_size"), vision.size("intermediate_size")  # noqa: N806
    layers, H = vision.layers(), vision.size("head_dim")  # noqa: N806
    queries = vision.size("num_attention_heads") * H
    keys = vision.size("num_key_value_heads") * H
    weights = [
        _matrix("patches", 3 * vision.size("patch_size") ** 2, D),
        _vector("positions", 2, vision.size("position_embedding_size"), D),
        _matrix("layers.attention.query_and_output", layers, 2, D, queries),
        _matrix("layers.attention.key_and_value", layers, 2, D, keys),
        _vector("layers.attention.norms", layers, 2, H),
        _matrix("layers.mlp", layers, 3, D, F),
        _vector("layers.norms", layers, 4, D),
        _matrix("projector", D, d_model),
    ]
    if vision.flag("use_clipped_linears"):
        weights.append(_clips(layers, 7))
    if vision.flag("standardize"):
        weights.append(_buffer("standardize", 2, D))
    return Tower(name="vision", weights=tuple(weights))


def gemma4_audio(audio: ConfigReader, d_model: int) -> Tower:
    """Gemma 4's audio encoder: a conformer behind two strided convolutions."""
    D, out = audio.size("hidden_size"), audio.size("output_proj_dims")  # noqa: N806
    layers, heads = audio.layers(), audio.size("num_attention_heads")
    queries = heads * (D // heads)
    channels = audio.sizes("subsampling_conv_channels") or ()
    if len(channels) != 2 or 0 in channels:
        audio.refuse("subsampling_conv_channels", "must be two whole numbers of at least 1")
    first, second = channels
    weights = [
        _vector("convolution_1", 3, 3, first),
        _vector("convolution_1.norm", first),
        _vector("convolution_2", 3, 3, first, second),
        _vector("convolution_2.norm", second),
        _matrix("input", first // 4 * second, D),
        _matrix("layers.mlps", layers, 2, 2, D, 4 * D),
        _matrix("layers.attention", layers, 4, D, queries),
        _matrix("layers.attention.output", layers, D, D),
        _vector("layers.attention.scale", layers, D // heads),
        _matrix("layers.convolution.in", layers, D, 2 * D),
        _vector("layers.convolution", layers, D, audio.size("conv_kernel_size")),
        _matrix("layers.convolution.out", layers, D, D),
        _vector("layers.norms", layers, 9, D),
        _matrix("output", D, out),
        _vector("output.bias", out),
        _matrix("projector", out, d_model),
    ]
    if audio.flag("use_clipped_linears"):
        weights.append(_clips(layers, 10))
    return Tower(name="audio", weights=tuple(weights))


def _matrix(name: str, *shape: int) -> ExtraWeight:
    return ExtraWeight(name=name, shape=shape, dims=_dims(shape), matmul=True)


def _vector(name: str, *shape: int) -> ExtraWeight:
    return ExtraWeight(name=name, shape=shape, dims=_dims(shape))


def _buffer(name: str, *shape: int) -> ExtraWeight:
    return ExtraWeight(name=name, shape=shape, dims=_dims(shape), trainable=False)


def _clips(layers: int, matrices: int) -> ExtraWeight:
    """The stored bounds, lower and upper, of each matrix's inputs and outputs."""
    return _buffer("layers.clips", layers, matrices, 4)


def _dims(shape: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"tower_{axis}" for axis in range(len(shape)))
