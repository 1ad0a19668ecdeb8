"""List what transformers stores of small models, as an answer key for muster's import and export.

Run it in an environment that has transformers 5, torch and safetensors (muster needs only the
last of them):

    python scripts/list_hf_checkpoints.py tests/data/hf_checkpoints.json

Each model is built from its config with random weights and saved, and the names and shapes of the
tensors are read back from the file: in the form that is published, and, where it is another one,
in the form that the model has in memory (experts fused).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# No two sizes are alike, so that a dim in the wrong place shows as a wrong shape.
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 70,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral"},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "qwen3-biases": {"model_type": "qwen3", "attention_bias": True},
    "mixtral": {"model_type": "mixtral", **EXPERTS},
    "qwen3_moe": {"model_type": "qwen3_moe", "moe_intermediate_size": 20, **EXPERTS},
    "qwen3_moe-some-dense": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 20,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 4,
        **EXPERTS,
    },
    "arcee": {"model_type": "arcee"},
    "cwm": {"model_type": "cwm"},
    "ernie4_5": {"model_type": "ernie4_5", "use_bias": True},
    "granite": {"model_type": "granite"},
    "helium": {"model_type": "helium", "head_dim": 8},
    "ministral": {"model_type": "ministral"},
    "ministral3": {"model_type": "ministral3"},
    "olmoe": {"model_type": "olmoe", "head_dim": 8, **EXPERTS},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        **EXPERTS,
    },
    "seed_oss": {"model_type": "seed_oss", "attention_bias": True, "attention_out_bias": True},
    "smollm3": {"model_type": "smollm3"},
}


def stored(model: Any, *, published: bool) -> dict[str, list[int]]:
    """Names and shapes in the file that `save_pretrained` writes."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, save_original_format=published)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def entry(case: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One model: its config and what a checkpoint of it holds."""
    raw = {**SIZES, **changes}
    config = CONFIG_MAPPING[raw["model_type"]].from_dict(
        {key: value for key, value in raw.items() if key != "model_type"}
    )
    model = AutoModelForCausalLM.from_config(config)
    published, fused = stored(model, published=True), stored(model, published=False)
    found = {
        "case": case,
        "class": type(model).__name__,
        "config": raw,
        "tensors": published,
    }
    return {**found, "fused": fused} if fused != published else found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="List the tensors of small checkpoints")
    parser.add_argument("file", type=Path, help="the JSON file to write")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    lines = ",\n".join(json.dumps(entry(case, changes)) for case, changes in CASES.items())
    source = f"transformers {transformers.__version__}"
    args.file.write_text(f'{{"source": "{source}", "entries": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
