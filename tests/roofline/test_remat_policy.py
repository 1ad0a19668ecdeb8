"""The parts of a layer that a policy computes again agree with the FLOP count's."""

import pytest

from muster.roofline.flops import training_flops
from muster.roofline.layer_costs import layer_shape
from muster.roofline.remat import MIXING, Remat, rerun_matmuls
from muster.roofline.remat_policy import PARTS, remat_policy
from muster.sharding.weights import weight_table
from tests.roofline.cases import published

MODELS = ("Llama-3-8B", "Mixtral-8x7B", "GPT-2", "DeepSeek-V3", "Qwen3-8B")


@pytest.mark.parametrize("name", MODELS)
def test_every_matmul_of_a_layer_belongs_to_a_part(name: str) -> None:
    model = published(name)
    for layer, copies in model.layer_groups:
        shape = layer_shape(model, layer)
        assert {each.part for each in shape.matmuls} <= set(PARTS)
        assert copies > 0
        assert shape.blocks == 2


@pytest.mark.parametrize("name", MODELS)
def test_the_matmuls_are_those_of_the_flop_count(name: str) -> None:
    """2 K N for each token and expert that it meets, over all layers."""
    model = published(name)
    counted = sum(
        copies * 2 * each.inputs * each.outputs * (each.active if each.experts else 1)
        for layer, copies in model.layer_groups
        for each in layer_shape(model, layer).matmuls
    )
    table = sum(
        2 * weight.active_count
        for weight in weight_table(model)
        if weight.role == "matmul" and weight.name.startswith("layers.")
    )
    assert counted == table
    assert counted * 3 <= training_flops(model, 1).model


@pytest.mark.parametrize("remat", list(Remat))
@pytest.mark.parametrize("whole_layer", [False, True])
def test_named_policies_rerun_what_the_flop_count_reruns(
    remat: Remat, *, whole_layer: bool
) -> None:
    model = published("Llama-3-8B")
    layer, _ = model.layer_groups[0]
    names = rerun_matmuls(model, layer, remat, whole_layer=whole_layer)
    policy = remat_policy(remat, whole_layer=whole_layer)
    expected = {"mixing" if name == MIXING else _short(name) for name in names}
    assert policy.rerun == expected


def _short(name: str) -> str:
    last = name.rsplit(".", 1)[-1]
    return "out" if last == "output" else last
