"""How fast the search is, in candidates per second; `test_speed` has the whole processes.

Run with `uv run --group dev pytest benchmarks/test_search_speed.py --benchmark-only -s`. Targets,
whole process on one core: 70B on 8,960 chips 1 s, 405B on 8 pods 2 s, DeepSeek-V3 on 2,048 GPUs
3 s. Nothing here asserts a time: machines are noisy, so compare two runs on one machine. That a
faster search finds the same is what `rankings.py` shows.
"""

import sys
from typing import Any

import pytest

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.meshes import Meshes, schedules
from muster.planner.search import Restrictions, search
from muster.planner.workload import make_workload
from muster.roofline.software import default_software
from muster.units import parse_batch

PLANS = {
    "70B on 8960 chips": ("llama-3-70b", "v5p:16x20x28", "4M"),
    "405B on 8 slices of 8960": ("llama-3.1-405b", "8xv5p:16x20x28", "16M"),
    "DeepSeek-V3 on 2048 GPUs": ("deepseek-v3", "h800:2048", "15360seq"),
    "DeepSeek-V3 on 4096 TPUs": ("deepseek-v3", "v5p:16x16x16", "4096seq"),
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
    meshes = Meshes(
        architecture=architecture,
        cluster=cluster,
        workload=workload,
        restrictions=Restrictions(),
        zero_1=not default_software(cluster.chip).shards_replicas,
    )
    legal = sum(
        1
        for mesh in meshes
        for pieces in meshes.pieces(mesh)
        for _ in schedules(mesh, pieces, meshes.microbatches(mesh))
    )
    benchmark.extra_info["candidates_per_second"] = legal / seconds
    with capsys.disabled():
        sys.stdout.write(
            f"\n{model} on {hardware}: {legal:,} candidates, {legal / seconds:,.0f} a second; "
            f"of {found.examined:,} the step was predicted\n"
        )
