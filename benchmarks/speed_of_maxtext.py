"""Tokens/s of MaxText on `train_speed.py`'s model; run by the Python that has maxtext installed.

    python speed_of_maxtext.py STEPS DTYPE

Synthetic data, no checkpoints; the mean over steps 10 to the last, from MaxText's own log.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

FIRST_COUNTED = 10
TOKENS = 8 * 256


def main() -> None:
    """Train with MaxText in a process of its own and print the mean rate as JSON."""
    steps, dtype = sys.argv[1:]
    spec = find_spec("maxtext")
    if spec is None or spec.origin is None:
        sys.exit("maxtext is not installed here")
    settings = {
        "run_name": "speed",
        "hardware": "cpu",
        "dataset_type": "synthetic",
        "enable_checkpointing": "false",
        "steps": steps,
        "decoder_block": "llama2",
        "base_emb_dim": 256,
        "base_num_decoder_layers": 4,
        "base_mlp_dim": 1024,
        "base_num_query_heads": 4,
        "base_num_kv_heads": 4,
        "head_dim": 64,
        "vocab_size": 32000,
        "max_target_length": 256,
        "per_device_batch_size": 8,
        "attention": "dot_product",
        "dtype": dtype,
        "weight_dtype": "float32",
        "enable_goodput_recording": "false",
        "monitor_goodput": "false",
        "skip_jax_distributed_system": "true",
        "gcs_metrics": "false",
        "enable_tensorboard": "false",
        "log_config": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "maxtext.trainers.pre_train.train"),
                str(Path(spec.origin).parent / "configs" / "base.yml"),
                f"base_output_directory={folder}",
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            check=False,
        )
    log = run.stdout + run.stderr
    found = re.findall(r"completed step: (\d+), seconds: ([\d.]+)", log)
    seconds = [float(each) for step, each in found if int(step) >= FIRST_COUNTED]
    if run.returncode or not seconds:
        sys.exit(log[-2000:])
    print(json.dumps({"tokens_per_second": TOKENS * len(seconds) / sum(seconds)}))


if __name__ == "__main__":
    main()
