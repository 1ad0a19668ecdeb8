"""Bounds: never above the step that they bound, and near enough to be of use."""

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from muster.hardware import Cluster, parse_cluster
from muster.models.architecture import Architecture
from muster.planner.bounds import Bounds
from muster.planner.meshes import filled_by
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from tests.planner.small import clusters, every_layout, models, splits, workloads
from tests.roofline.cases import published

LAYOUTS = 40


@given(
    architecture=models(),
    cluster=clusters(),
    workload=workloads,
    remat=st.sampled_from([Remat.NONE, Remat.FULL]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_a_bound_is_never_above_the_step(
    architecture: Architecture, cluster: Cluster, workload: Workload, remat: Remat, seed: int
) -> None:
    assume(splits(cluster, workload))
    model = StepModel(architecture, cluster, workload)
    policy = remat_policy(remat, whole_layer=model.software.whole_layer)
    bounds = Bounds(model, policy)
    layouts = [
        (layout, filled)
        for layout in every_layout(architecture, cluster, workload)
        for filled in filled_by(cluster, layout.chips_per_slice)
    ]
    for layout, filled in random.Random(seed).sample(layouts, min(LAYOUTS, len(layouts))):
        here = StepModel(architecture, filled, workload)
        step = here.step(layout, policy)
        mesh = replace(layout, data=layout.data * layout.fsdp, fsdp=1)
        m, v = layout.microbatches, layout.virtual_stages
        for most, fewest in ((m, m), (2 * m, m), (2 * m, 1)):
            bound = bounds.seconds(
                model.on(filled), mesh, pieces=v, microbatches=most, fewest=fewest
            )
            assert bound <= step.total, (layout, most, fewest)


@pytest.mark.parametrize(
    ("hardware", "layout"),
    [
        ("h100:512", Layout(stage=4, data=32, tensor=4, microbatches=8, shards_optimizer=True)),
        ("v5p:8x8x8", Layout(data=128, sequence=2, tensor=2, microbatches=2)),
    ],
)
def test_a_bound_comes_within_a_few_percent_of_a_large_models_step(
    hardware: str, layout: Layout
) -> None:
    model = StepModel(
        published("Llama-3-70B"),
        parse_cluster(hardware),
        Workload(sequence_length=4096, batch_sequences=1024),
    )
    split = layout if layout.stage > 1 else replace(layout, data=1, fsdp=layout.data)
    policy = remat_policy(Remat.NONE, whole_layer=model.software.whole_layer)
    step = model.step(split, policy)
    m = layout.microbatches
    bound = Bounds(model, policy).seconds(model, layout, pieces=1, microbatches=m, fewest=m)
    assert 0.93 * (step.total - step.fsdp - step.data) < bound <= step.total
