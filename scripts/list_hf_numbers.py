"""Compute small models with transformers' own code, as an answer key for muster's arithmetic.

Run it in an environment that has transformers 5, torch and safetensors:

    python scripts/list_hf_numbers.py tests/data/hf_numbers

It writes `hf_numbers.json` (configs, losses, norms of every gradient) and `hf_numbers.npz` (ids and
logits). No weights are stored: every tensor is drawn from a generator whose seed is the CRC-32 of
its published name, here and in the tests alike.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROWS, TOKENS = 2, 12
SPREAD = 0.15  # wide enough that every weight's gradient is far above rounding

# No two sizes are alike, so that a dim in the wrong place shows.
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 70,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-one-kv-head": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 16},
    "llama-as-many-kv-heads": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-gelu": {"model_type": "llama", "hidden_act": "gelu"},
    "llama-gelu-tanh": {"model_type": "llama", "hidden_act": "gelu_pytorch_tanh"},
    "llama-large-eps": {"model_type": "llama", "rms_norm_eps": 0.3},
    "llama-linear-rope": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "llama-llama3-rope": {"model_type": "llama", "rope_theta": 100.0, "rope_scaling": LLAMA3},
    "mistral-window": {"model_type": "mistral", "sliding_window": 5},
    "mistral-no-window": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "head_dim": None},
    "qwen2-windows-of-some-layers": {
        "model_type": "qwen2",
        "head_dim": None,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen3": {"model_type": "qwen3"},
    "qwen3-biases": {"model_type": "qwen3", "attention_bias": True},
    "mixtral": {"model_type": "mixtral", "sliding_window": None, **EXPERTS},
    "mixtral-window": {"model_type": "mixtral", "sliding_window": 5, **EXPERTS},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        **EXPERTS,
    },
    "qwen3_moe-shares-as-they-are": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 20,
        "norm_topk_prob": False,
        **EXPERTS,
    },
}


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor's values: normal, around 1 for the scales of norms."""
    values = SPREAD * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return (values + ("norm" in name)).astype(np.float32)


def model_of(raw: dict[str, Any]) -> Any:
    """A model with drawn weights, loaded as a published checkpoint is."""
    given = {k: v for k, v in raw.items() if k != "model_type" and (k, v) != ("head_dim", None)}
    config = CONFIG_MAPPING[raw["model_type"]].from_dict(given)
    with tempfile.TemporaryDirectory() as folder:
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        empty.save_pretrained(folder, save_original_format=True)
        file = Path(folder) / "model.safetensors"
        shapes = {name: tensor.shape for name, tensor in load_file(file).items()}
        tensors = {name: drawn(name, shape) for name, shape in shapes.items()}
        save_file(tensors, file, metadata={"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )


def entry(case: str, changes: dict[str, Any]) -> tuple[dict[str, Any], Any, Any]:
    """One model's config, loss and gradient norms; its ids; its logits."""
    raw = {key: value for key, value in {**SIZES, **changes}.items() if key != "head_dim" or value}
    model = model_of(raw)
    seed = zlib.crc32(case.encode())
    # Without the padding's id, to whose row of the embedding torch hands no gradient.
    ids = np.random.default_rng(seed).integers(3, raw["vocab_size"], (ROWS, TOKENS))
    logits = model(torch.from_numpy(ids)).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, raw["vocab_size"]), torch.from_numpy(ids)[:, 1:].reshape(-1)
    )
    loss.backward()
    norms = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}
    found = {"case": case, "config": raw, "loss": loss.item(), "gradient_norms": norms}
    return found, ids.astype(np.int32), logits.detach().numpy()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Compute small models with transformers")
    parser.add_argument("stem", type=Path, help="the files to write, without .json and .npz")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    found = {case: entry(case, changes) for case, changes in CASES.items()}
    lines = ",\n".join(json.dumps(described) for described, _, _ in found.values())
    source = f"transformers {transformers.__version__}, torch {torch.__version__}"
    args.stem.with_suffix(".json").write_text(
        f'{{"source": "{source}", "entries": [\n{lines}\n]}}\n', encoding="utf-8"
    )
    arrays = {f"{case}/ids": ids for case, (_, ids, _) in found.items()}
    arrays |= {f"{case}/logits": logits for case, (_, _, logits) in found.items()}
    np.savez_compressed(args.stem.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
