"""The small JSON files beside exported weights: config.json and generation_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path

from muster.models.architecture import Architecture
from muster.sharding.hf_names import FAMILIES

# Of how a checkpoint was stored or which code built it; neither holds for the exported one.
NOT_EXPORTED = ("quantization_config", "auto_map", "torch_dtype")
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def write_configs(folder: Path, architecture: Architecture, dtype: str) -> None:
    """Write config.json, and generation_config.json where the config names special tokens."""
    config = exported_config(architecture, dtype)
    _write(folder / "config.json", config)
    if tokens := {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}:
        _write(folder / "generation_config.json", {"_from_model_config": True, **tokens})


def exported_config(architecture: Architecture, dtype: str) -> dict[str, object]:
    """The config as it was read, with what is true of the exported weights.

    Keys that start with an underscore are notes of whoever wrote the file.
    """
    assert architecture.config, f"{architecture.name} was not read from a config"
    kept = {
        key: value
        for key, value in architecture.config.items()
        if key not in NOT_EXPORTED and not key.startswith("_")
    }
    return {
        **kept,
        "architectures": [FAMILIES[architecture.family]],
        "dtype": dtype,  # transformers 5
        "torch_dtype": dtype,  # transformers 4
        "tie_word_embeddings": architecture.tied_embeddings,
        "vocab_size": architecture.vocab_size,
    }


def _write(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
