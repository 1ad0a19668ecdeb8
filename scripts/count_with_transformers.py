"""Count parameters with transformers' own model classes, as an answer key for muster's tests.

Run it in an environment that has transformers 5 and torch (muster itself needs neither):

    python scripts/count_with_transformers.py config.json ...           # CSV, one line a file
    python scripts/count_with_transformers.py --json --shapes config.json
    python scripts/count_with_transformers.py --text gemma3/config.json # its language model only
    python scripts/count_with_transformers.py --refresh tests/data/hf_counts.json

Models are built on torch's meta device, so that a 671B model needs no memory. A tied weight is
counted once. ``--refresh`` recounts every config of a test-data file and rewrites the file.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import logging
import math
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Published under a model type of remote code, although a class of transformers is the same.
SAME_CLASS = {"kimi_k2": "deepseek_v3"}
# Names of the expert count E and of the experts a token visits, k, over all families.
EXPERT_COUNTS = (
    "num_local_experts",
    "n_routed_experts",
    "num_experts",
    "moe_num_experts",
    "num_routed_experts",
)
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_k",
    "moe_top_k",
)
# Kept out of the config because they say how weights are stored, not how many there are.
STORAGE_KEYS = ("quantization_config", "auto_map", "dtype", "torch_dtype")


@dataclass(frozen=True)
class Count:
    """Parameters of one model."""

    class_name: str
    trainable: int
    active: int | None  # null where the experts that a token visits cannot be told
    routed: int
    experts: int | None
    experts_per_token: int | None
    tensors: int
    frozen: int  # parameters with requires_grad off, such as a router's correction bias
    buffers: dict[str, int]  # saved with the weights, but no parameters
    shapes: dict[str, list[int]]

    def as_dict(self) -> dict[str, Any]:
        """The count under the names that the test data uses."""
        return {
            "class": self.class_name,
            "trainable": self.trainable,
            "active": self.active,
            "routed": self.routed,
            "n_experts": self.experts,
            "top_k": self.experts_per_token,
            "tensors": self.tensors,
            "frozen": self.frozen,
            "buffer_numel": sum(self.buffers.values()),
            "buffers": self.buffers,
            "shapes": self.shapes,
        }


def load_config(raw: dict[str, Any]) -> Any:
    """Turn a config.json mapping into an instance of its config class."""
    config = {k: v for k, v in copy.deepcopy(raw).items() if k not in STORAGE_KEYS}
    name = config.pop("model_type")
    if name not in CONFIG_MAPPING:
        name = SAME_CLASS.get(name, name)
    if name not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model_type {name!r}")
    return CONFIG_MAPPING[name].from_dict(config)


def build(raw: dict[str, Any], *, text_only: bool = False) -> Any:
    """Build the model on the meta device.

    The class is the first of ``architectures`` that transformers has, else the causal LM class
    of the config.
    """
    config = load_config(raw)
    named = [getattr(transformers, name, None) for name in raw.get("architectures") or ()]
    cls = next((c for c in named if c is not None), None)
    if text_only:
        config, cls = config.get_text_config(decoder=True), None
    with torch.device("meta"):
        model = (
            AutoModelForCausalLM.from_config(config) if cls is None else cls._from_config(config)
        )
    model.tie_weights()
    return model


def first_int(config: Any, keys: tuple[str, ...]) -> int | None:
    """The first whole number that the config, or its ffn part, has under one of the keys."""
    for source in (config, getattr(config, "ffn_config", None)):
        for key in keys:
            value = getattr(source, key, None)
            if isinstance(value, list) and len(set(value)) == 1:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def is_routed(name: str, shape: list[int], experts: int | None) -> bool:
    """Say whether a token uses only some experts' slices of a parameter."""
    parts = name.split(".")
    if "router" in parts or "gate" in parts:
        return False
    if "experts" in parts:
        inner = parts[parts.index("experts") + 1 :]
        listed = any(part.isdigit() for part in inner) or "mlp" in inner  # dbrx flattens in mlp
        return listed or len(shape) == 3 or shape[0] == experts
    if parts[-2] in {"down_embed", "up_embed"}:  # doge looks its experts up as embeddings
        return shape[0] == experts
    stacked = len(shape) == 3 and shape[0] == experts
    return stacked and parts[-2] in {"input_linear", "output_linear"}


def active_parameters(
    total: int, routed: list[list[int]], experts: int | None, k: int | None
) -> int | None:
    """Parameters that one token uses: all but the experts it does not visit.

    Null where some stack holds more slices than experts (longcat_flash has weightless ones).
    """
    if not routed:
        return total
    if not experts or k is None or any(len(s) == 3 and s[0] != experts for s in routed):
        return None
    return total - sum(math.prod(shape) for shape in routed) * (experts - k) // experts


def count(raw: dict[str, Any], *, text_only: bool = False) -> Count:
    """Count the parameters of a config.json mapping."""
    model = build(raw, text_only=text_only)
    config = model.config.get_text_config(decoder=True)
    experts, k = first_int(config, EXPERT_COUNTS), first_int(config, EXPERTS_PER_TOKEN)
    parameters = dict(model.named_parameters())  # names a shared tensor once
    shapes = {name: list(p.shape) for name, p in parameters.items()}
    trainable = sum(p.numel() for p in parameters.values() if p.requires_grad)
    routed = [shape for name, shape in shapes.items() if is_routed(name, shape, experts)]
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return Count(
        class_name=type(model).__name__,
        trainable=trainable,
        active=active_parameters(trainable, routed, experts, k),
        routed=sum(math.prod(shape) for shape in routed),
        experts=experts,
        experts_per_token=k,
        tensors=len(parameters),
        frozen=sum(p.numel() for p in parameters.values() if not p.requires_grad),
        buffers={n: t.numel() for n, t in model.state_dict().items() if n not in names},
        shapes=shapes,
    )


def test_entry(identity: str, raw: dict[str, Any]) -> dict[str, Any]:
    """One entry of a test-data file: the config and what transformers counts for it."""
    counted = count(raw)
    entry: dict[str, Any] = {
        "id": identity,
        "config": raw,
        "class": counted.class_name,
        "trainable": counted.trainable,
        "active": counted.active,
        "routed": counted.routed,
        "tensors": counted.tensors,
        "buffers": sum(counted.buffers.values()),
    }
    if counted.frozen:
        entry["frozen"] = counted.frozen
    if "text_config" in raw:
        text = count(raw, text_only=True)
        entry["text"] = {"class": text.class_name, "trainable": text.trainable}
    return entry


def write_entries(path: Path, entries: list[dict[str, Any]]) -> None:
    """Write a test-data file, one entry a line."""
    source = f"transformers {transformers.__version__}"
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    path.write_text(f'{{"source": "{source}", "entries": [\n{lines}\n]}}\n', encoding="utf-8")


def refresh(path: Path) -> None:
    """Recount every config of a test-data file."""
    entries = json.loads(path.read_text(encoding="utf-8"))["entries"]
    write_entries(path, [test_entry(entry["id"], entry["config"]) for entry in entries])


def print_csv(rows: list[dict[str, Any]]) -> None:
    """Print the plain numbers of each row."""
    columns = [k for k in rows[0] if k not in {"buffers", "shapes"}]
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Count parameters with transformers")
    parser.add_argument("files", nargs="*", type=Path, help="config.json files")
    parser.add_argument("--json", action="store_true", help="print JSON instead of CSV")
    parser.add_argument("--shapes", action="store_true", help="with --json, list every tensor")
    parser.add_argument("--text", action="store_true", help="count the nested language model")
    parser.add_argument("--refresh", type=Path, help="recount this test-data file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.refresh:
        refresh(args.refresh)
    rows = []
    for file in args.files:
        raw = json.loads(file.read_text(encoding="utf-8"))
        row = {"file": file.name, **count(raw, text_only=args.text).as_dict()}
        rows.append(row if args.shapes else {k: v for k, v in row.items() if k != "shapes"})
    if args.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print_csv(rows)


if __name__ == "__main__":
    main()
