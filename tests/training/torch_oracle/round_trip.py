"""Does transformers load what muster exports, to the same logits?

Run it where transformers 5, torch and safetensors are, and name the Python that has muster:

    python tests/training/torch_oracle/round_trip.py .venv/bin/python

Each small model of `tests/data/hf_checkpoints.json` and of `tests/data/parity` goes from
transformers to muster and back, in the published form and with experts fused, in float32 and in
bfloat16. `from_pretrained` must find every tensor and no other, all of them equal bit for bit to
those of the model before. The logits are then the same function of the same numbers; they may
differ by the rounding of sums, whose order torch chooses by where an array lies in memory. Those
of the parity models are compared with what is written beside them besides.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

DATA = Path(__file__).parents[2] / "data"
REEXPORT = Path(__file__).with_name("reexport.py")
# Rounding of logits of size 1 to 5 after a few layers, in units in the last place: 16 of float32's
# 2**-23, two of bfloat16's 2**-7.
TOLERANCE = {torch.float32: 16 * 2.0**-23 * 5, torch.bfloat16: 2 * 2.0**-7 * 5}


def made_models(folder: Path) -> list[Path]:
    """Save every model of the list with random weights, biases and norms included."""
    entries = json.loads((DATA / "hf_checkpoints.json").read_text())["entries"]
    made: list[Path] = []
    for entry in entries:
        raw = {key: value for key, value in entry["config"].items() if key != "model_type"}
        config = CONFIG_MAPPING[entry["config"]["model_type"]].from_dict(raw)
        torch.manual_seed(len(made))
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        for form in ("tensors", "fused"):
            if form in entry:
                made.append(folder / f"{entry['case']}-{form}")
                model.save_pretrained(made[-1], save_original_format=form == "tensors")
        made.append(folder / f"{entry['case']}-bfloat16")
        model.to(torch.bfloat16).save_pretrained(made[-1])
    return made


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def load(folder: Path) -> Any:
    """Load a model as it was stored; every tensor must be there, and no other."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", experts_implementation="eager", output_loading_info=True
    )
    faults = {key: value for key, value in report.items() if value}
    if faults:
        raise SystemExit(f"{folder.name}: from_pretrained reports {faults}")
    return model.eval()


def compare(before: Path, after: Path) -> None:
    """Stop unless two folders are the same model."""
    theirs, ours = load(before), load(after)
    stored = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        if not torch.equal(stored[name], tensor) or stored[name].dtype != tensor.dtype:
            raise SystemExit(f"{before.name}: {name} is not what it was")
    expected, known = before / "expected.npz", dict[str, Any]()
    tokens = torch.randint(0, 70, (2, 12), generator=torch.Generator().manual_seed(0))
    if expected.exists():
        known = dict(np.load(expected))
        tokens = torch.tensor(known["input_ids"], dtype=torch.int64)
    with torch.no_grad():
        logits, before_logits = ours(tokens).logits, theirs(tokens).logits
    away = {"before": (logits - before_logits).abs().max().item()}
    if known:
        away["written"] = np.abs(logits.float().numpy() - known["logits"]).max().item()
    say(f"{before.name}: {len(stored)} tensors equal; logits to {logits.abs().max():.3g}")
    say("".join(f"    off by {value:.2g} from those {key}" for key, value in away.items()))
    if max(away.values()) > TOLERANCE[logits.dtype]:
        raise SystemExit("the logits differ by more than rounding")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Round trips between transformers and muster")
    parser.add_argument("python", help="the Python that has muster")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        made = made_models(Path(name))
        pairs = [(source, Path(name) / "again" / source.name) for source in made]
        pairs += [
            (source, Path(name) / "again" / source.name)
            for source in sorted((DATA / "parity").iterdir())
        ]
        folders = [str(folder) for pair in pairs for folder in pair]
        subprocess.run([args.python, str(REEXPORT), *folders], check=True)
        for before, after in pairs:
            compare(before, after)
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"
    say(f"{len(pairs)} models are the same before and after; {version}")


if __name__ == "__main__":
    main()
