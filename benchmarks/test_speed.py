"""How long muster takes, as a person waits for it: whole processes, and the work inside them.

Run with `uv run --group dev pytest benchmarks --benchmark-only`. Nothing here asserts a time:
machines are noisy, so compare two runs on one machine.
"""

import subprocess
import sys
from typing import Any

import pytest

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.workload import make_workload
from muster.sharding.weights import weight_table
from muster.units import parse_batch

PLANS = {
    "70B on 8960 chips": "llama-3-70b --on v5p:16x20x28 --batch 4M --seq 4096",
    "405B on 8 pods": "llama-3.1-405b --on 8xv5p:16x20x28 --batch 16M",
    "DeepSeek-V3 on 2048 GPUs": "deepseek-v3 --on h800:2048 --batch 15360seq",
}
WHOLE_PROCESS = {
    "version": ["--version"],
    **{f"plan {name}": ["plan", *arguments.split()] for name, arguments in PLANS.items()},
    "params 70B": ["params", "llama-3-70b"],
    "models": ["models"],
    "chips": ["chips"],
}


@pytest.mark.parametrize("arguments", WHOLE_PROCESS.values(), ids=list(WHOLE_PROCESS))
def test_whole_process(benchmark: Any, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "muster", *arguments]
    done = benchmark.pedantic(
        subprocess.run, args=(command,), kwargs={"capture_output": True}, rounds=10, warmup_rounds=2
    )
    assert done.returncode == 0, done.stderr


def test_make_plan(benchmark: Any) -> None:
    architecture = find_model("llama-3-70b")
    cluster = parse_cluster("v5p:16x20x28")
    workload = make_workload(architecture, parse_batch("4M"), sequence_length=4096)
    plan = benchmark(make_plan, architecture, cluster, workload)
    assert plan.layout.chips_used <= cluster.chips


def test_weight_table(benchmark: Any) -> None:
    table = benchmark(weight_table, find_model("deepseek-v3"))
    assert len(table) > 1
