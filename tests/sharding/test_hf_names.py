"""Names and layouts of checkpoints, beside what transformers itself writes.

`tests/data/hf_checkpoints.json` is written by `scripts/list_hf_checkpoints.py`.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UnknownName
from muster.models.hf_config import architecture_from_config
from muster.models.registry import catalogue_model
from muster.sharding.hf_names import FAMILIES, HfTensor, Region, hf_tensors
from muster.sharding.rules import as_held
from muster.sharding.weights import weight_table

FILE = Path(__file__).parents[1] / "data" / "hf_checkpoints.json"
ENTRIES: list[dict[str, Any]] = json.loads(FILE.read_text())["entries"]
CASES = {entry["case"]: entry for entry in ENTRIES}


def tensors(case: str, *, fused: bool = False) -> dict[str, HfTensor]:
    model = architecture_from_config(CASES[case]["config"], name=case)
    return {tensor.weight: tensor for tensor in hf_tensors(model, fused=fused)}


def test_every_family_has_a_case() -> None:
    assert {entry["config"]["model_type"] for entry in ENTRIES} == set(FAMILIES)
    assert {entry["class"] for entry in ENTRIES} == set(FAMILIES.values())


@pytest.mark.parametrize(
    ("case", "form"),
    [(case, form) for case in CASES for form in ("tensors", "fused") if form in CASES[case]],
)
def test_names_and_shapes_are_those_of_transformers(case: str, form: str) -> None:
    ours = {
        tensor.name(place): list(tensor.shape)
        for tensor in tensors(case, fused=form == "fused").values()
        for place in tensor.places()
    }
    assert ours == CASES[case][form]


@pytest.mark.parametrize("case", CASES)
def test_each_weight_of_the_table_is_made_up_once(case: str) -> None:
    model = architecture_from_config(CASES[case]["config"], name=case)
    table = {weight.name: weight for weight in weight_table(model)}
    for fused in (False, True):
        found = hf_tensors(model, fused=fused)
        assert [tensor.weight for tensor in found] == list(table)
        for tensor in found:
            weight = table[tensor.weight]
            layers = (weight.copies,) if tensor.weight.startswith("layers.") else ()
            assert tensor.stacked == (*layers, *as_held(weight).shape)


def test_layers_without_a_weight_are_left_out_of_its_stack() -> None:
    found = tensors("qwen3_moe-some-dense")
    assert found["layers.mlp.up"].layers == (0, 2)
    assert found["layers.router"].layers == (1, 3)
    expert = found["layers.experts.down"]
    assert expert.name((1, 2)) == "model.layers.3.mlp.experts.2.down_proj.weight"


def test_heads_are_flattened_outside_the_head_dim() -> None:
    # q_proj is [N*H, D] and row n*H + h is number h of head n; o_proj's columns likewise.
    found, H = tensors("llama"), 10
    query, output = found["layers.attention.query"], found["layers.attention.output"]
    assert stored_point(query, (7, 3, 4)) == (3 * H + 4, 7)
    assert stored_point(output, (7, 3, 4)) == (7, 3 * H + 4)
    assert stored_point(found["head"], (5, 9)) == (9, 5)
    assert stored_point(found["embedding"], (9, 5)) == (9, 5)


def test_fused_gate_lies_before_up() -> None:
    found = tensors("mixtral", fused=True)
    gate, up, F = found["layers.experts.gate"], found["layers.experts.up"], 56
    assert stored_point(gate, (2, 5, 9)) == (2, 9, 5)
    assert stored_point(up, (2, 5, 9)) == (2, F + 9, 5)


@given(st.data())
def test_a_box_of_ours_is_found_in_its_region(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(["llama-biases", "mixtral", "olmoe"]))
    fused = data.draw(st.booleans()) and case != "llama-biases"
    found = tensors(case, fused=fused)
    tensor = found[data.draw(st.sampled_from(list(found)))]
    box = tuple(data.draw(cuts(size)) for size in tensor.ours)
    region, inner = tensor.stored_region(box), tensor.inner_region(box)
    outermost = {dims[0] for dims in tensor.order}
    corners = product(*({cut.start, cut.stop - 1} for cut in box))
    for point in corners:
        where = stored_point(tensor, point)
        assert all(cut.start <= at < cut.stop for at, cut in zip(where, region, strict=True))
        # Where the point lies once the region has our dims again.
        local = [at - box[d].start if d in outermost else at for d, at in enumerate(point)]
        offsets = [at - cut.start for at, cut in zip(local, inner, strict=True)]
        assert offsets == [at - cut.start for at, cut in zip(point, box, strict=True)]
    whole = all(box[d] == slice(0, tensor.ours[d]) for d in range(len(box)) if d not in outermost)
    if whole:  # no more is read than was asked for
        assert points(region) == points(box)


def test_transpositions_undo_each_other() -> None:
    for case in CASES:
        for tensor in tensors(case).values():
            there = [tensor.to_stored[dim] for dim in tensor.to_ours]
            assert there == list(range(len(tensor.ours)))
            assert tensor.split == tuple(tensor.ours[dim] for dim in tensor.to_stored)


def test_a_family_without_known_names_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"unknown model family 'gpt2'"):
        hf_tensors(architecture_from_config({"model_type": "gpt2"}, name="gpt2"))


@pytest.mark.parametrize(
    ("name", "number"),
    [("Llama-3-8B", 3 + 32 * 9), ("Llama-3.2-1B", 2 + 16 * 9), ("Mixtral-8x7B", 3 + 32 * 31)],
)
def test_published_models(name: str, number: int) -> None:
    found = hf_tensors(catalogue_model(name))
    assert sum(1 for tensor in found for _ in tensor.places()) == number


def stored_point(tensor: HfTensor, point: tuple[int, ...]) -> tuple[int, ...]:
    """Where a number of our part is stored, dim by dim."""
    found = []
    for stored, dims in enumerate(tensor.order):
        index = 0
        for dim in dims:
            index = index * tensor.ours[dim] + point[dim]
        found.append(index + (tensor.start if stored == 1 else 0))
    return tuple(found)


def cuts(size: int) -> st.SearchStrategy[slice]:
    starts = st.integers(0, size - 1)
    return starts.flatmap(lambda start: st.integers(start + 1, size).map(lambda b: slice(start, b)))


def points(region: Region) -> int:
    number = 1
    for cut in region:
        number *= cut.stop - cut.start
    return number


def test_a_decoder_inside_a_larger_model_is_refused() -> None:
    inner = {"model_type": "mistral", "num_hidden_layers": 1}
    outer = {"model_type": "mistral3", "text_config": inner}
    model = architecture_from_config(outer, name="with a vision tower")
    assert model.family in FAMILIES
    with pytest.raises(UnknownName, match="unknown model family 'mistral3'"):
        hf_tensors(model)
