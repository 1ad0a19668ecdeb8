"""Tokens/s of the training step on this machine's processor, beside others that are installed.

    uv run --extra train python benchmarks/train_speed.py [--maxtext PYTHON] [--torch PYTHON]

The model: d_model 256, 4 layers, d_ff 1024, 4 heads of 64, vocabulary 32000; 8 rows of 256 random
tokens. Every run is a process of its own; means are over steps 10 to the last. `--maxtext` and
`--torch` name the Python of an environment that has maxtext, or torch and transformers. Runs are
interleaved, and each figure is the best and the median of `--rounds` runs: machines are noisy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
ROWS, LENGTH = 8, 256
FIRST_COUNTED = 10


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One program to be timed: a name, the command, what it should print as its last line."""

    name: str
    command: tuple[str, ...]


def main() -> None:
    """Time all contenders in turn, several rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--maxtext", metavar="PYTHON")
    parser.add_argument("--torch", metavar="PYTHON")
    parser.add_argument("--child", nargs=2, metavar=("DEVICES", "DTYPE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(_muster(int(asked.child[0]), asked.child[1], asked.steps)))
        return
    contenders = list(_contenders(asked))
    results: dict[str, list[dict[str, float]]] = {each.name: [] for each in contenders}
    for number in range(asked.rounds):
        for each in contenders:
            result = _timed(each)
            results[each.name].append(result)
            rate = f"{result['tokens_per_second']:,.0f} tokens/s"
            print(f"round {number + 1}: {each.name}: {rate}", file=sys.stderr, flush=True)
    print(f"{ROWS} rows of {LENGTH} tokens, steps {FIRST_COUNTED} to {asked.steps - 1}")
    print(f"{'':34}{'best':>10}{'median':>10}  tokens/s   host time a step")
    for name, runs in results.items():
        rates = [run["tokens_per_second"] for run in runs]
        host = [run["host_seconds"] for run in runs if "host_seconds" in run]
        shown = f"{1e3 * min(host):8.2f} ms" if host else ""
        print(f"{name:34}{max(rates):>10,.0f}{statistics.median(rates):>10,.0f}  {shown:>18}")


def _contenders(asked: argparse.Namespace) -> list[Contender]:
    steps = ("--steps", str(asked.steps))
    found = [
        Contender(
            name=f"muster, {devices} device{'s' * (devices > 1)}, {dtype}",
            command=(sys.executable, __file__, *steps, "--child", str(devices), dtype),
        )
        for devices in (1, 8)
        for dtype in ("float32", "bfloat16")
    ]
    for flag, script in (("maxtext", "speed_of_maxtext.py"), ("torch", "speed_of_torch.py")):
        python = getattr(asked, flag)
        if python:
            found += [
                Contender(
                    name=f"{flag}, {dtype}",
                    command=(python, str(HERE / script), str(asked.steps), dtype),
                )
                for dtype in ("float32", "bfloat16")
            ]
    return found


def _timed(contender: Contender) -> dict[str, float]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    run = subprocess.run(
        contender.command, capture_output=True, text=True, env=environment, check=False
    )
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        sys.exit(f"{contender.name} failed: {run.stderr[-2000:]}")
    result: dict[str, float] = json.loads(lines[-1])
    return result


def _muster(devices: int, dtype: str, steps: int) -> dict[str, float]:
    """Train in this process; tokens/s over the counted steps, and the host's own time a step."""
    import time

    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    from muster.models.hf_config import architecture_from_config
    from muster.roofline.workload import Workload
    from muster.sharding.mesh import Layout
    from muster.training.data import DataConfig
    from muster.training.feed import Feed
    from muster.training.optimizer import OptimizerConfig, learning_rates
    from muster.training.setup import compile_program, fresh_state, make_program, model_on
    from muster.training.step import Objective

    architecture = architecture_from_config(CONFIG, name="benchmark")
    layout = Layout(fsdp=devices)
    model = model_on(architecture, layout, LENGTH, compute_dtype=dtype)
    workload = Workload(
        sequence_length=LENGTH, batch_sequences=ROWS, param_dtype="f32", optimizer_dtype="f32"
    )
    optimizer = OptimizerConfig(total_steps=steps)
    program, rates = (
        make_program(workload, model, optimizer, Objective()),
        learning_rates(optimizer),
    )
    step, state = compile_program(program), fresh_state(program, 0)
    data = DataConfig(sequence_length=LENGTH, batch_sequences=ROWS, synthetic=True)
    feed = Feed(data, architecture.vocab_size, None, model.partition)
    host = 0.0
    metrics = None
    for index in range(steps):
        if index == FIRST_COUNTED:
            jax.block_until_ready(state)
            begun, worked, host = time.perf_counter(), time.process_time(), 0.0
        before = time.perf_counter()
        batch = next(feed)
        state, current = step(state, batch, rates[index])
        host += time.perf_counter() - before
        if metrics is not None:
            jax.device_get(metrics)
        metrics = current
    jax.block_until_ready(state)
    counted = steps - FIRST_COUNTED
    seconds = (time.perf_counter() - begun) / counted
    processor = (time.process_time() - worked) / counted
    feed.close()
    return {
        "tokens_per_second": ROWS * LENGTH / seconds,
        "host_seconds": host / counted,
        "processor_seconds": processor,  # of all cores: what a busy machine does not change much
    }


if __name__ == "__main__":
    main()
