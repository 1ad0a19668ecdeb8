"""The `step` of a plan: read with checks, written only where it says something."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.planner.choice import Restrictions
from muster.planner.plan_file import planned_run
from muster.planner.step_choices import (
    DEFAULT_STEP,
    LANES,
    AttentionBlocks,
    StepChoices,
    step_choices,
)
from muster.roofline.workload import Workload
from tests.proof.make_programs import LLAMA

BLOCK = st.integers(1, 64).map(lambda number: number * LANES)


@given(
    st.builds(
        StepChoices,
        layers_unrolled=st.integers(1, 1024),
        loss_chunk_tokens=st.none() | st.integers(1, 10**6),
        attention_blocks=st.builds(
            AttentionBlocks, queries=BLOCK, backward_keys=BLOCK, fused_backward=st.booleans()
        ),
    )
)
def test_what_is_written_is_read_back(choices: StepChoices) -> None:
    written = json.loads(json.dumps({"step": choices.to_json()}))
    assert step_choices(written, where="x") == choices


def test_all_defaults_are_not_written() -> None:
    assert DEFAULT_STEP.to_json() == {}
    assert step_choices({}, where="x") is DEFAULT_STEP
    plan = make_plan(
        architecture_from_config(LLAMA, name="small"),
        parse_cluster("v5p:2x2x4"),
        Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
    )
    assert "step" not in plan.to_json()
    assert planned_run(plan.to_json(), where="x").step is DEFAULT_STEP
    held = planned_run({**plan.to_json(), "step": {"layers_unrolled": 2}}, where="x").step
    assert held == StepChoices(layers_unrolled=2)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (7, "x: step is 7; it must be an object"),
        ({"layer_unrolled": 2}, "unknown key of x: step: 'layer_unrolled'; did you mean layers_un"),
        ({"layers_unrolled": 0}, "layers_unrolled is 0; it must be a whole number of at least 1"),
        ({"layers_unrolled": True}, "layers_unrolled is True; it must be a whole number"),
        ({"layers_unrolled": 10**9}, "it must be at most 1,024"),
        ({"loss_chunk_tokens": 1.5}, "loss_chunk_tokens is 1.5; it must be a whole number"),
        ({"attention_blocks": []}, "x: step: attention_blocks is []; it must be an object"),
        ({"attention_blocks": {"queries": 500}}, "a multiple of 128, such as 384 or 512"),
        ({"attention_blocks": {"keys": 5}}, "a multiple of 128, such as 128"),
        ({"attention_blocks": {"fused_backward": 1}}, "fused_backward is 1; it must be true or"),
        ({"attention_blocks": {"query": 128}}, "did you mean queries"),
    ],
)
def test_bad_values_are_one_line(step: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        step_choices({"step": step}, where="x")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_blocks_are_told_by_what_differs() -> None:
    assert str(AttentionBlocks()) == "512 tokens"
    assert str(AttentionBlocks(queries=1024, fused_backward=True)) == "queries 1024, fused backward"


def test_a_placement_is_read_where_it_is_not_the_rules() -> None:
    plan = make_plan(
        architecture_from_config(LLAMA, name="small"),
        parse_cluster("v5p:4x4x4"),
        Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
        restrictions=Restrictions(fixed={"tensor": 4, "fsdp": 16}),
    )
    document = plan.to_json()
    assert planned_run(document, where="x").torus is None
    layout: Any = document["layout"]
    other = {"tensor": ["x:2", "y:2"], "fsdp": ["z", "y:2", "x:2"]}
    held = planned_run(document | {"layout": {**layout, "torus": other}}, where="x").torus
    assert held == {"tensor": ("x:2", "y:2"), "fsdp": ("z", "y:2", "x:2")}
    for bad, said in (({"tensor": "x"}, "it must be a list of axes"), ({"tensor": ["w"]}, "'w'")):
        with pytest.raises(BadInput, match=said):
            planned_run(document | {"layout": {**layout, "torus": bad}}, where="x")
