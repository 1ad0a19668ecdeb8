"""A program of its own: what an import or an export takes beside the weights, in MB.

    python peak_memory.py import|export FOLDER DEVICES

Both first run on a model of no size, so that what is measured is no library's start.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config
from muster.sharding.hf_names import HfTensor, hf_tensors
from muster.training.huggingface import export_folder, import_folder
from muster.training.params import Params

# 313.6 MB in float32, of which the largest tensor, the embedding, is 65.5 MB.
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 16000,
}
TINY = {**SIZES, "hidden_size": 16, "intermediate_size": 8, "vocab_size": 8}


def resident(key: str) -> float:
    """This process's memory from Linux, VmRSS now or VmHWM at its highest, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024 / 1e6


def start_measuring() -> float:
    """Forget the highest mark so far; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def weights(model: Architecture, shardings: dict[str, Sharding]) -> Params:
    return {
        tensor.weight: jnp.full(
            tensor.stacked, 0.5, jnp.float32, device=shardings[tensor.weight]
        ).block_until_ready()
        for tensor in hf_tensors(model)
    }


def shardings_of(model: Architecture) -> dict[str, Sharding]:
    """All matrices split over their first dim."""
    mesh = jax.make_mesh((len(jax.devices()),), ("fsdp",))

    def spec(tensor: HfTensor) -> PartitionSpec:
        layers = () if tensor.layers is None else (None,)
        return PartitionSpec(*layers, *(("fsdp",) if len(tensor.ours) > 1 else ()))

    return {tensor.weight: NamedSharding(mesh, spec(tensor)) for tensor in hf_tensors(model)}


def run(action: str, folder: Path, sizes: dict[str, Any]) -> dict[str, float]:
    model = architecture_from_config(sizes, name="measured")
    shardings = shardings_of(model)
    given = weights(model, shardings) if action == "export" else {}
    before, begin = start_measuring(), time.perf_counter()
    if action == "export":
        export_folder(given, model, folder, dtype="float32")
    else:
        given = import_folder(folder, model, dtype="float32", shardings=shardings)
    seconds = time.perf_counter() - begin
    peak = resident("VmHWM") - before
    nbytes = [array.nbytes / 1e6 for array in given.values()]
    return {
        "weights": sum(nbytes),
        "largest": SIZES["vocab_size"] * SIZES["hidden_size"] * 4 / 1e6,
        "peak": peak,
        "seconds": seconds,
    }


def main() -> None:
    action, folder = sys.argv[1], Path(sys.argv[2])
    tiny = folder.with_name(f"tiny-{action}-{sys.argv[3]}")
    jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
    run("export", tiny, TINY)
    run("import", tiny, TINY)
    sys.stdout.write(json.dumps(run(action, folder, SIZES)) + "\n")


if __name__ == "__main__":
    main()
