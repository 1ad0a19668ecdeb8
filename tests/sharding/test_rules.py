"""The one rule of which mesh axes split which dim: its invariants on every known model."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.models.registry import find_model
from muster.sharding.mesh import Layout
from muster.sharding.rules import (
    as_held,
    mesh_axes,
    padded_table,
    padded_vocab,
    shards,
    unsplit,
)
from muster.sharding.weight import Weight, matmul, vector
from muster.sharding.weights import weight_table

MODELS = ("llama-3-8b", "llama-3.2-1b", "qwen2.5-7b", "mixtral-8x7b", "qwen3-30b-a3b")
WAYS = st.sampled_from([1, 2, 3, 4, 8, 16])
LAYOUTS = st.builds(
    Layout,
    slice=st.sampled_from([1, 2]),
    data=WAYS,
    fsdp=WAYS,
    sequence=WAYS,
    expert=WAYS,
    tensor=WAYS,
    shards_over_slices=st.booleans(),
)
EXPERT_GATE = Weight(
    name="layers.experts.gate",
    component="experts",
    shape=(8, 4096, 14336),
    dims=("experts", "d_model", "d_ff"),
)


@given(layout=LAYOUTS, name=st.sampled_from(MODELS))
def test_an_axis_splits_one_dim_and_splits_it_evenly(layout: Layout, name: str) -> None:
    for weight in padded_table(find_model(name), layout):
        axes = mesh_axes(weight, layout)
        used = [axis for of_dim in axes for axis in of_dim]
        assert len(set(used)) == len(used)
        for size, of_dim in zip(weight.shape, axes, strict=True):
            ways = math.prod(getattr(layout, axis) for axis in of_dim)
            assert size % ways == 0
        assert not {"stage", "data"} & set(used)
        assert layout.shards_over_slices or "slice" not in used
        assert shards(weight, layout) == math.prod(getattr(layout, axis) for axis in used)


@given(layout=LAYOUTS, name=st.sampled_from(MODELS))
def test_only_the_vocabulary_is_padded_and_by_less_than_the_ways(layout: Layout, name: str) -> None:
    model = find_model(name)
    for plain, padded in zip(weight_table(model), padded_table(model, layout), strict=True):
        held = as_held(plain)
        assert held.size == plain.size
        for dim, size, full in zip(held.dims, held.shape, padded.shape, strict=True):
            assert 0 <= full - size < (layout.tensor if dim == "vocab" else 1)
            assert dim != "vocab" or full % layout.tensor == 0
    assert padded_vocab(model.vocab_size, layout) - model.vocab_size < layout.tensor


@pytest.mark.parametrize(
    ("weight", "layout", "axes"),
    [
        # Vectors are whole along D and split where their heads are.
        (vector("norm", "norm", (4096,), ("d_model",)), Layout(fsdp=4, tensor=2), ((),)),
        (
            vector("bias", "attention", (32, 128), ("heads", "head_dim")),
            Layout(fsdp=4, tensor=2),
            (("tensor",), ()),
        ),
        # Of several axes over D, those from the front whose product divides it.
        (
            matmul("up", "mlp", (24, 64), ("d_model", "d_ff")),
            Layout(fsdp=4, sequence=2, expert=2, tensor=2),
            (("fsdp", "sequence"), ("tensor",)),
        ),
        # More tensor ways than KV heads leave them whole.
        (
            matmul("key", "attention", (4096, 8, 128), ("d_model", "kv_heads", "head_dim")),
            Layout(fsdp=2, tensor=16),
            (("fsdp",), (), ()),
        ),
        # Experts take their axis; D has the others.
        (
            EXPERT_GATE,
            Layout(fsdp=2, sequence=2, expert=4, tensor=2),
            (("expert",), ("fsdp", "sequence"), ("tensor",)),
        ),
        # A router is a matrix of D x E, not a stack of E experts.
        (
            matmul("router", "experts", (4096, 8), ("d_model", "experts")),
            Layout(fsdp=2, expert=4),
            (("fsdp", "expert"), ()),
        ),
        (
            matmul("up", "mlp", (4096, 64), ("d_model", "d_ff")),
            Layout(slice=2, fsdp=4, shards_over_slices=True),
            (("slice", "fsdp"), ()),
        ),
        (matmul("up", "mlp", (4096, 64), ("d_model", "d_ff")), Layout(slice=2, data=4), ((), ())),
    ],
)
def test_axes_of_each_dim(
    weight: Weight, layout: Layout, axes: tuple[tuple[str, ...], ...]
) -> None:
    assert mesh_axes(weight, layout) == axes


def test_names_the_matrices_whose_width_does_not_divide() -> None:
    model = find_model("llama-3-8b")  # D = 4096
    assert list(unsplit(model, Layout(fsdp=8, sequence=4))) == []
    assert next(iter(unsplit(model, Layout(fsdp=3)))) == "embedding"
    mixture = find_model("mixtral-8x7b")
    named = set(unsplit(mixture, Layout(fsdp=512, expert=8, sequence=2)))
    assert "layers.attention.query" in named  # 8,192 ways of 4,096
    assert "layers.experts.gate" not in named  # its D has 1,024 of them
