"""Write what an absent key of a config.json means, as transformers' config classes have it.

Run it in an environment that has transformers 5 and torch (muster itself needs neither):

    python scripts/extract_class_defaults.py [--out src/muster/models/data/class_defaults.json]

For every decoder-only language model type, and every part (text, vision, audio) that such a
config nests, the file holds the raw keyword defaults: the value before any derivation from
other keys, so ``num_key_value_heads`` of llama is null. Four entries are not keyword defaults:

* ``attribute_map``: other names under which a config.json may give the same value;
* ``sub_configs``: the model type whose defaults fill each nested part;
* ``optional_sub_configs``: the nested parts that stay absent when the key is absent or null;
* ``default_theta``: the rotary base when neither ``rope_parameters`` nor ``rope_theta`` gives one.

Keys that a class accepts without declaring (older spellings such as
``full_attention_interval``) appear beside the declared ones when their default is a literal.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_OUT = Path(__file__).parents[1] / "src/muster/models/data/class_defaults.json"

# Listed as causal LMs by transformers, yet encoders, encoder-decoders or audio and image models.
NOT_DECODER_ONLY = frozenset(
    {
        "aria_text",
        "bart",
        "bert",
        "bert-generation",
        "big_bird",
        "bigbird_pegasus",
        "blenderbot",
        "blenderbot-small",
        "blt",
        "camembert",
        "cpmant",
        "ctrl",
        "data2vec-text",
        "electra",
        "emu3",
        "ernie",
        "fuyu",
        "git",
        "got_ocr2",
        "marian",
        "mbart",
        "megatron-bert",
        "mllama",
        "moshi",
        "moss_transcribe_diarize",
        "musicgen",
        "musicgen_melody",
        "mvp",
        "pegasus",
        "plbart",
        "prophetnet",
        "reformer",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "trocr",
        "whisper",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xlnet",
        "xmod",
    }
)
# Wrappers of a language model that transformers lists elsewhere.
WRAPPERS = (
    "mistral3",
    "llama4",
    "gemma3",
    "gemma3n",
    "gemma4",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "glm4v",
    "glm4v_moe",
)

# Keys that change neither a shape nor a FLOP: tokens, regularisation, initial values, reporting.
IRRELEVANT = re.compile(
    r"""(.*_token_(id|index|ids))|(.*drop(out)?(_p|_rate|_prob)?)|(.*pdrop)|(.*initializer.*)
    |(use_cache)|(output_(?!vocab|proj).*)|(return_dict.*)|(.*_loss.*)|(summary_.*)|(gradient_checkpointing)
    |(chunk_size_feed_forward)|(is_encoder_decoder)|(id2label)|(label2id)|(problem_type)
    |(num_labels)|(dtype)|(torch_dtype)|(architectures)|(transformers_version)|(pretraining_tp)
    |(router_jitter_noise)|(input_jitter_noise)|(name_or_path)|(_.*)|(time_step_(?!rank).*)
    |(keys_to_ignore_at_inference)|(clip_qkv_.*)|(.*_jitter.*)|(attn_implementation)""",
    re.VERBOSE,
)


def is_relevant(key: str) -> bool:
    """Say whether a key belongs in the file."""
    return IRRELEVANT.fullmatch(key) is None


def declared_defaults(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """Defaults of the fields that a config class declares or inherits."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def accepted_defaults(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """Literal defaults of undeclared keys, read from the ``kwargs`` calls of ``__post_init__``."""
    found: dict[str, Any] = {}
    method = cls.__dict__.get("__post_init__")
    if method is None:
        return found
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(method))))
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="kwargs"), attr="pop" | "get" | "setdefault"),
                args=[ast.Constant(value=str(key)), default],
            ):
                try:
                    found[key] = ast.literal_eval(default)
                except ValueError:  # derived from other keys, which is not a raw default
                    continue
    return found


def parts(cls: type[PreTrainedConfig]) -> Iterator[tuple[str, str, type[PreTrainedConfig], bool]]:
    """Nested parts of a config: key, model type, class, and whether it may stay absent."""
    for key, spec in cls.sub_configs_defaults.items():
        named = spec.config_class
        known = isinstance(named, type) and issubclass(named, PreTrainedConfig)
        part = named if known else CONFIG_MAPPING[spec.model_type]
        yield key, part.model_type or f"{cls.model_type}.{key}", part, spec.optional
    for part in vars(sys.modules[cls.__module__]).values():  # dbrx and mpt nest without a spec
        if isinstance(part, type) and issubclass(part, PreTrainedConfig):
            key = getattr(part, "base_config_key", "")
            if key in declared_defaults(cls) and key not in cls.sub_configs_defaults:
                yield key, f"{cls.model_type}.{key}", part, False


def describe(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    """All that the file says about one config class."""
    nested = {key: name for key, name, _, _ in parts(cls)}
    optional = sorted(key for key, _, _, may_lack in parts(cls) if may_lack)
    raw = accepted_defaults(cls) | declared_defaults(cls)
    canonical = cls.attribute_map
    entry = {canonical.get(k, k): v for k, v in raw.items() if is_relevant(k) and k not in nested}
    if cls.attribute_map:
        entry["attribute_map"] = dict(cls.attribute_map)
    if nested:
        entry["sub_configs"] = nested
    if optional:
        entry["optional_sub_configs"] = optional
    if "rope_parameters" in raw:
        entry["default_theta"] = cls.default_theta
    return entry


def collect() -> dict[str, dict[str, Any]]:
    """Defaults of every decoder-only model type and of the parts they nest."""
    wanted = (set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_DECODER_ONLY) | set(WRAPPERS)
    queue = [(name, CONFIG_MAPPING[name]) for name in sorted(wanted) if name in CONFIG_MAPPING]
    found: dict[str, dict[str, Any]] = {}
    while queue:
        name, cls = queue.pop()
        if name in found:
            continue
        found[name] = describe(cls)
        queue.extend((part_name, part) for _, part_name, part, _ in parts(cls))
    return found


def render(defaults: dict[str, dict[str, Any]], source: str) -> str:
    """JSON text with one model type a line, sorted."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(defaults[name], sort_keys=True)}"
        for name in sorted(defaults)
    ]
    body = ",\n".join(lines)
    return f'{{\n "source": {json.dumps(source)},\n "defaults": {{\n{body}\n }}\n}}\n'


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Extract config class defaults")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    args = parser.parse_args()
    defaults = collect()
    text = render(defaults, f"transformers {transformers.__version__}")
    json.loads(text)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    print(f"{len(defaults)} model types -> {args.out}")


if __name__ == "__main__":
    main()
