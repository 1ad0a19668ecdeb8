"""LLaMA and its kin: RMS norms, rotary embedding, mostly gated MLPs; told apart by a few traits.

Facts: the model and config classes of transformers 5.24.0, one file a family there.
"""

from dataclasses import replace
from itertools import cycle, islice

from muster.models.architecture import (
    LAYER_NORM,
    RMS_NORM,
    Attention,
    ExtraWeight,
    Mlp,
    Norm,
)
from muster.models.families import common
from muster.models.families.dense import Traits, builders
from muster.models.families.stack import alternating, same_window, windows_by_kind
from muster.models.reader import ConfigReader

UNIT_RMS = Norm(scale=False)  # no learned vector
UNIT_LAYER = Norm(kind="layer", scale=False)
SCALED_LAYER = Norm(kind="layer")  # without a bias


def qwen_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Qwen's windows are off unless `use_sliding_window`, and then only from one layer on."""
    if not reader.flag("use_sliding_window"):
        return (None,) * layers
    if reader.raw("layer_types") is not None:
        return alternating(0)(reader, layers)
    window, first = reader.optional_size("sliding_window"), reader.count("max_window_layers")
    return tuple(window if layer >= first else None for layer in range(layers))


def listed_or_same(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Windows in the listed layers; in all of them where none are listed."""
    if reader.raw("layer_types") is None:
        return same_window(reader, layers)
    return alternating(0)(reader, layers)


def exaone4_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Full attention once a `sliding_window_pattern`; nowhere a window if there is none."""
    if reader.raw("layer_types") is not None:
        return alternating(0)(reader, layers)
    if reader.raw("sliding_window") is None:
        return (None,) * layers
    pattern = reader.raw("sliding_window_pattern")
    if isinstance(pattern, str):  # as published: "LLLG", local and global, over and over
        if not pattern or set(pattern) - {"L", "G"}:
            reader.refuse("sliding_window_pattern", "is text; it must be L and G only, as LLLG")
        letters = islice(cycle(pattern), layers)
        kinds = tuple("full" if letter == "G" else "sliding" for letter in letters)
        return windows_by_kind(reader, kinds)
    return alternating("sliding_window_pattern")(reader, layers)


def smollm3_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Windows only if `use_sliding_window`, and then in the layers that do not rotate."""
    if not reader.flag("use_sliding_window"):
        return (None,) * layers
    if reader.raw("layer_types") is not None:
        return alternating(0)(reader, layers)
    kinds = tuple("full" if on else "sliding" for on in _smollm3_rotating(reader, layers))
    return windows_by_kind(reader, kinds)


def smollm3_rotary(reader: ConfigReader, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """All layers but those with a 0 in `no_rope_layers`, by default every fourth."""
    return _smollm3_rotating(reader, len(windows))


def _smollm3_rotating(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    listed = reader.sizes("no_rope_layers")
    if listed is None:
        interval = reader.size("no_rope_layer_interval")
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if len(listed) != layers:
        reader.refuse("no_rope_layers", f"has {len(listed)} entries for {layers} layers")
    return tuple(on > 0 for on in listed)


def sliding_rotary(reader: ConfigReader, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Full-attention layers do not rotate, unless no window is set at all."""
    if reader.raw("sliding_window") is None:
        return (True,) * len(windows)
    return tuple(window is not None for window in windows)


def cohere2_rotary(_: ConfigReader, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Only sliding layers rotate."""
    return tuple(window is not None for window in windows)


def granite_swa_rotary(reader: ConfigReader, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """A layer with a 0 in `layer_rope_theta` does not rotate."""
    listed = reader.raw("layer_rope_theta")
    if listed is None:
        return (True,) * len(windows)
    if not isinstance(listed, list) or len(listed) != len(windows):
        reader.refuse("layer_rope_theta", f"must be a list of {len(windows)} numbers")
    return tuple(bool(theta) for theta in listed)


def hyperclovax_norms(reader: ConfigReader) -> int:
    """Two norms, or four with those after attention and MLP."""
    return 4 if reader.flag("use_post_norm") else 2


def helium_head_dim(reader: ConfigReader) -> int:
    """H; the class's output projection is D x D, so N*H must be D."""
    size = common.head_dim(reader)
    heads, d_model = reader.size("num_attention_heads"), reader.size("hidden_size")
    if heads * size != d_model:
        reader.refuse("head_dim", f"is {size:,}; times {heads} heads it must be {d_model:,}")
    return size


def xielu_scalars(
    reader: ConfigReader, _attention: Attention, _mlp: Mlp
) -> tuple[ExtraWeight, ...]:
    """The two trained and two stored numbers of the xIELU activation (arXiv:2411.13010)."""
    if reader.text("hidden_act") != "xielu":
        return ()
    trained = {"alpha_p": True, "alpha_n": True, "beta": False, "eps": False}
    return tuple(
        ExtraWeight(name=f"mlp.activation.{name}", shape=(1,), dims=("one",), trainable=is_trained)
        for name, is_trained in trained.items()
    )


def bitnet_norms(reader: ConfigReader, _attention: Attention, mlp: Mlp) -> tuple[ExtraWeight, ...]:
    """The norms before the last matrix of attention and of the MLP."""
    return (
        ExtraWeight(
            name="attention.sub_norm", shape=(reader.size("hidden_size"),), dims=("d_model",)
        ),
        ExtraWeight(name="mlp.sub_norm", shape=(mlp.d_ff,), dims=("d_ff",)),
    )


def doge_extras(reader: ConfigReader, attention: Attention, _mlp: Mlp) -> tuple[ExtraWeight, ...]:
    """Learned residual scales, and the projection that scores which keys to keep."""
    d_model, kv = reader.size("hidden_size"), attention.num_kv_heads
    bias = (ExtraWeight(name="attention.keep.bias", shape=(kv,), dims=("kv_heads",)),)
    return (
        ExtraWeight(name="attention.residual", shape=(d_model,), dims=("d_model",)),
        ExtraWeight(name="mlp.residual", shape=(d_model,), dims=("d_model",)),
        ExtraWeight(name="attention.keep_scale", shape=(kv,), dims=("kv_heads",)),
        ExtraWeight(
            name="attention.keep",
            shape=(kv, attention.head_dim, kv),
            dims=("kv_heads", "head_dim", "kept_heads"),
            matmul=True,
        ),
        *(bias if attention.query_bias else ()),
    )


MINISTRAL3_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0}
CWM_ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0}
APERTUS_ROPE = {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0}

# Without biases; with those of attention under a flag; LLaMA, whose MLP has a flag besides.
PLAIN = Traits()
BIASED = replace(PLAIN, qkv_bias="attention_bias", output_bias="attention_bias")
LLAMA = replace(BIASED, mlp_bias="mlp_bias")

FAMILIES = {
    "llama": LLAMA,
    "exaone": LLAMA,
    "granite": LLAMA,
    "internlm3": LLAMA,
    "iquestcoder": LLAMA,
    "hyperclovax": replace(LLAMA, norms=hyperclovax_norms),
    "arcee": replace(LLAMA, gated=False),
    "jais2": replace(LLAMA, gated=False, norm=LAYER_NORM),
    "nemotron": replace(LLAMA, gated=False, norm=LAYER_NORM),
    "helium": replace(LLAMA, output_bias=False, head_dim=helium_head_dim),
    "smollm3": replace(LLAMA, windows=smollm3_windows, rotary=smollm3_rotary),
    "granite_swa": replace(
        LLAMA, sinks=True, windows=alternating(4, first=0), rotary=granite_swa_rotary
    ),
    "ernie4_5": replace(PLAIN, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    "seed_oss": replace(LLAMA, output_bias="attention_out_bias"),
    "mistral": replace(PLAIN, windows=same_window),
    "ministral": replace(PLAIN, windows=listed_or_same),
    "ministral3": replace(PLAIN, windows=same_window, usual_rope=MINISTRAL3_ROPE),
    "cwm": replace(
        PLAIN, mlp_bias="mlp_bias", windows=alternating(4, first=0), usual_rope=CWM_ROPE
    ),
    "phi3": replace(PLAIN, windows=same_window),
    "qwen2": replace(PLAIN, qkv_bias=True, windows=qwen_windows),
    "qwen3": replace(BIASED, qk_norm=RMS_NORM, windows=qwen_windows),
    "hunyuan_v1_dense": replace(BIASED, qk_norm=RMS_NORM),
    "exaone4": replace(PLAIN, qk_norm=RMS_NORM, windows=exaone4_windows, rotary=sliding_rotary),
    "apertus": replace(
        BIASED, qk_norm=RMS_NORM, gated=False, extras=xielu_scalars, usual_rope=APERTUS_ROPE
    ),
    "glm": replace(PLAIN, qkv_bias="attention_bias"),
    "glm4": replace(PLAIN, qkv_bias="attention_bias", norms=4),
    "olmo": replace(BIASED, norm=UNIT_LAYER),
    "olmo2": replace(BIASED, qk_norm=RMS_NORM, qk_norm_over="all"),
    "olmo3": replace(BIASED, qk_norm=RMS_NORM, qk_norm_over="all", windows=alternating(4)),
    "cohere": replace(
        BIASED,
        norm=SCALED_LAYER,
        norms=1,
        qk_norm=SCALED_LAYER,
        qk_norm_if="use_qk_norm",
        qk_norm_over="each_head",
    ),
    "cohere2": replace(
        BIASED,
        norm=SCALED_LAYER,
        norms=1,
        head_dim=common.derived_head_dim,
        windows=alternating("sliding_window_pattern"),
        rotary=cohere2_rotary,
    ),
    "bitnet": replace(BIASED, extras=bitnet_norms),
    "nanochat": replace(BIASED, gated=False, norm=UNIT_RMS, qk_norm=UNIT_RMS, embedding_norm=True),
    "doge": replace(
        LLAMA,
        qk_norm=RMS_NORM,
        extras=doge_extras,
        windows=same_window,
        must_be_off=(("is_moe", "its mixture of experts looked up by product keys"),),
    ),
}

BUILDERS = builders(FAMILIES)

REFUSED = {
    "diffllama": "its attention subtracts one softmax from another, which is not counted here",
    "hrm_text": "it runs the same layers many times over",
    "dory": "it runs the same layers many times over",
}
