"""How fast the search is: candidates per second, and whole processes of the three large plans.

Run with `uv run --group dev pytest benchmarks/test_search_speed.py --benchmark-only -s`. Targets,
whole process on one core: 70B on 8,960 chips 1 s, 405B on 8 pods 2 s, DeepSeek-V3 on 2,048 GPUs
3 s. Nothing here asserts a time: machines are noisy, so compare two runs on one machine.
"""

import subprocess
import sys
from typing import Any

import pytest

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.search import search
from muster.planner.workload import make_workload
from muster.units import parse_batch

PLANS = {
    "70B on 8960 chips": ("llama-3-70b", "v5p:16x20x28", "4M"),
    "405B on 8 slices of 8960": ("llama-3.1-405b", "8xv5p:16x20x28", "16M"),
    "DeepSeek-V3 on 2048 GPUs": ("deepseek-v3", "h800:2048", "15360seq"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_candidates_per_second(
    benchmark: Any, capsys: pytest.CaptureFixture[str], plan: tuple[str, str, str]
) -> None:
    model, hardware, batch = plan
    architecture, cluster = find_model(model), parse_cluster(hardware)
    workload = make_workload(architecture, parse_batch(batch), sequence_length=4096)
    found = benchmark.pedantic(search, args=(architecture, cluster, workload), rounds=3)
    assert found.ranked
    if benchmark.stats is None:
        return
    seconds = benchmark.stats.stats.min
    benchmark.extra_info["candidates_per_second"] = found.examined / seconds
    with capsys.disabled():
        rate = found.examined / seconds
        line = f"{model} on {hardware}: {found.examined:,} candidates, {rate:,.0f} a second"
        sys.stdout.write(f"\n{line}\n")


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_whole_process(benchmark: Any, plan: tuple[str, str, str]) -> None:
    model, hardware, batch = plan
    command = [sys.executable, "-m", "muster", "plan", model, "--on", hardware, "--batch", batch]
    command += ["--seq", "4096"]
    done = benchmark.pedantic(
        subprocess.run, args=(command,), kwargs={"capture_output": True}, rounds=3, warmup_rounds=1
    )
    assert done.returncode == 0, done.stderr
