"""Wrappers of a text decoder, and the classes that are refused by name.

A wrapper's config nests that of its text decoder, which is counted exactly. Only the towers of
Gemma 3 and 4 are counted beside it (see `towers`); of other wrappers the output says what is left
out. Source of the tables: the config classes of Hugging Face transformers 5 (`sub_configs`), and
for names that only remote code knows, their published config.json.
"""

from collections.abc import Mapping

from muster.models.architecture import Architecture
from muster.models.families import llama, moe
from muster.models.families.dense import Builder
from muster.models.reader import ConfigReader

# Class of the text decoder, where its config does not name it -> the wrappers.
_TEXT = {
    "cohere2": ("aya_vision", "cohere2_vision"),
    "deepseek_v3": ("kimi_k25", "kimi_vl"),
    "exaone4": ("exaone4_5",),
    "gemma": ("paligemma",),
    "gemma3_text": ("gemma3", "shieldgemma2"),
    "gemma3n_text": ("gemma3n",),
    "gemma4_text": ("gemma4",),
    "gemma4_unified_text": ("gemma4_unified",),
    "glm4v_moe_text": ("glm4v_moe",),
    "glm4v_text": ("glm4v", "glm46v"),
    "granite": ("granite_speech",),
    "hyperclovax": ("hyperclovax_vision_v2",),
    "lfm2": ("lfm2_vl",),
    "llama": (
        "deepseek_vl",
        "idefics3",
        "llava",
        "llava_next",
        "llava_next_video",
        "perception_lm",
        "smolvlm",
        "video_llava",
        "vipllava",
        "voxtral",
    ),
    "llama4_text": ("llama4",),
    "mistral": ("idefics2", "mistral3"),
    "nemotron_h": ("nemotron_h_omni",),
    "qwen2": (
        "audioflamingo3",
        "fast_vlm",
        "internvl",
        "llava_onevision",
        "ovis2",
        "qwen2_audio",
        "vibevoice",
        "video_llama_3",
    ),
    "qwen2_5_vl_text": ("qwen2_5_vl",),
    "qwen2_vl_text": ("qwen2_vl",),
    "qwen3": ("lighton_ocr", "qwen3_asr"),
    "qwen3_5_moe_text": ("qwen3_5_moe",),
    "qwen3_5_text": ("minicpmv4_6", "qwen3_5"),
    "qwen3_vl_moe_text": ("qwen3_vl_moe",),
    "qwen3_vl_text": ("qwen3_vl",),
}

NESTED: dict[str, tuple[str, str]] = {
    **{wrapper: ("text_config", text) for text, wrappers in _TEXT.items() for wrapper in wrappers},
    "internvl_chat": ("llm_config", "qwen2"),
}

COUNTED_TOWERS = ("gemma3", "gemma4")


def uncounted_parts(config: Mapping[str, object]) -> tuple[str, ...]:
    """What of a wrapper is not in the count, one line each."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in NESTED or model_type in COUNTED_TOWERS:
        return ()
    text_key, _ = NESTED[model_type]
    towers = [
        key
        for key, value in config.items()
        if key.endswith("_config") and key != text_key and isinstance(value, Mapping)
        if key not in {"quantization_config", "generation_config"}
    ]
    return (
        *(f"{key.removesuffix('_config')} tower ({key}) not counted" for key in towers),
        f"{model_type}: only the text decoder is counted, without towers and projectors",
    )


def outer_flag(reader: ConfigReader, config: Mapping[str, object]) -> ConfigReader:
    """A reader that takes `tie_word_embeddings` from the wrapper, of whose text class it is none.

    Where the text class has such a flag of its own, it decides, and a contradiction is noted.
    """
    key = "tie_word_embeddings"
    outer = config.get(key)
    if outer is None or reader.has(key):
        inner = reader.raw(key) if reader.has(key) else outer
    elif reader.default(key) is None:
        return reader.narrowed({key: outer})
    else:
        inner = reader.default(key)
    if outer is not None and inner != outer:
        reader.notes.append(
            f"{key} is {str(outer).lower()} outside the text decoder's config and "
            f"{str(inner).lower()} for it; the latter was taken"
        )
    return reader


def build_qwen2_text(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """The decoder of Qwen2-VL and 2.5-VL: Qwen2's."""
    return llama.BUILDERS["qwen2"](reader, name, config)


def build_qwen3_text(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """The decoder of Qwen3-VL: Qwen3's."""
    return llama.BUILDERS["qwen3"](reader, name, config)


def build_qwen3_moe_text(
    reader: ConfigReader, name: str, config: Mapping[str, object]
) -> Architecture:
    """The decoder of Qwen3-VL-MoE: Qwen3-MoE's."""
    return moe.BUILDERS["qwen3_moe"](reader, name, config)


def build_glm4_text(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """The decoder of GLM-4V: GLM-4's, whose query, key and value projections always have biases."""
    return llama.BUILDERS["glm4"](reader.narrowed({"attention_bias": True}), name, config)


def build_glm4_moe_text(
    reader: ConfigReader, name: str, config: Mapping[str, object]
) -> Architecture:
    """The decoder of GLM-4V-MoE: GLM-4-MoE's, never with norms of queries and keys."""
    return moe.BUILDERS["glm4_moe"](reader.narrowed({"use_qk_norm": False}), name, config)


BUILDERS: dict[str, Builder] = {
    "qwen2_vl_text": build_qwen2_text,
    "qwen2_5_vl_text": build_qwen2_text,
    "qwen3_vl_text": build_qwen3_text,
    "qwen3_vl_moe_text": build_qwen3_moe_text,
    "glm4v_text": build_glm4_text,
    "glm4v_moe_text": build_glm4_moe_text,
}

_REASONS = {
    "its recurrent blocks are not described here yet": (
        "recurrent_gemma",
        "rwkv",
        "xlstm",
    ),
    "its attention and recurrent mixers share a layer, which is not described here yet": (
        "falcon_h1",
        "zamba",
        "zamba2",
    ),
    "its attention has routed experts of its own, which is not described here yet": ("jetmoe",),
    "its decoder attends to images through layers of its own": ("mllama", "mllama_text_model"),
    "it is several models in one": ("qwen2_5_omni", "qwen3_omni_moe", "janus", "csm", "moshi"),
    "it is an encoder-decoder, and muster plans decoders": (
        "bart",
        "blenderbot",
        "led",
        "longt5",
        "m2m_100",
        "marian",
        "mbart",
        "mt5",
        "nllb-moe",
        "pegasus",
        "prophetnet",
        "seamless_m4t",
        "speech_to_text",
        "switch_transformers",
        "t5",
        "t5gemma",
        "t5gemma2",
        "umt5",
        "whisper",
    ),
    "it is an encoder, and muster plans decoders": (
        "albert",
        "bert",
        "camembert",
        "clip",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "esm",
        "eurobert",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "roberta",
        "siglip",
        "siglip2",
        "vit",
        "wav2vec2",
        "xlm-roberta",
    ),
    "it generates by diffusion, and muster plans decoders that predict the next token": (
        "diffusion_gemma",
        "dream",
        "llada",
    ),
}

REFUSED = {
    model_type: reason for reason, model_types in _REASONS.items() for model_type in model_types
}
