"""The form that suits the machine, and its reason."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.training.attention import ChosenAttention, Masking, attention_for, reference
from muster.training.mesh import AXES, make_mesh
from tests.training.attention.cases import SCALE, inputs, packed
from tests.training.attention.on_mesh import on_mesh


def chosen(platform: str, *, sequence_length: int = 4096, **how: Any) -> ChosenAttention:
    """For a mesh of devices that are not there."""
    ways = {axis: how.pop(axis, 1) for axis in AXES}
    devices = np.full(tuple(ways.values()), SimpleNamespace(platform=platform))
    mesh: Any = SimpleNamespace(shape=ways, devices=devices)
    shapes: dict[str, Any] = {
        "query_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "dtype": "bfloat16",
    }
    shapes |= how
    return attention_for(mesh, sequence_length=sequence_length, **shapes)


@pytest.mark.parametrize(
    ("how", "name", "why"),
    [
        ({"platform": "tpu"}, "splash", "Pallas"),
        ({"platform": "tpu", "sequence": 4}, "splash", "gathered over 4"),
        ({"platform": "tpu", "sequence_length": 1000}, "blockwise", "multiples of 128"),
        ({"platform": "tpu", "sequence": 32}, "blockwise", "chunks here have 64"),
        ({"platform": "gpu"}, "blockwise", "how many documents"),
        ({"platform": "gpu", "documents": 8}, "cudnn", "NVIDIA"),
        ({"platform": "gpu", "documents": 8, "dtype": "float32"}, "blockwise", "not float32"),
        ({"platform": "gpu", "documents": 8, "sequence": 2}, "blockwise", "whole rows"),
        ({"platform": "cpu"}, "blockwise", "no fused kernel for cpu"),
        ({"platform": "cpu", "sequence_length": 128}, "reference", "128 tokens are few"),
        ({"platform": "cpu", "sequence_length": 128, "sequence": 2}, "blockwise", "gathered"),
    ],
    ids=str,
)
def test_chooses_by_platform_and_shape(how: dict[str, Any], name: str, why: str) -> None:
    choice = chosen(**how)
    assert choice.name == name
    assert why in choice.why


def test_refuses_what_cannot_be_split() -> None:
    with pytest.raises(BadInput, match="cannot be split 3 ways"):
        chosen("tpu", tensor=3)
    with pytest.raises(BadInput, match="cannot be cut into 6 equal chunks"):
        chosen("tpu", sequence=3)


@pytest.mark.parametrize("layout", [Layout(data=2), Layout(sequence=2, tensor=4)], ids=str)
def test_the_choice_runs(layout: Layout) -> None:
    mesh = make_mesh(layout)
    attention = attention_for(
        mesh,
        sequence_length=256,
        query_heads=4,
        kv_heads=2,
        head_dim=8,
        dtype="float32",
    )
    q, k, v, _ = inputs(2, 256, 4, 2, 8)
    segments = packed(2, 256)
    want = reference.attend(q, k, v, mask=Masking(segments=segments), scale=SCALE)
    order = attention.order(256)
    assert (order is None) == (layout.sequence == 1)
    if order is not None:
        q, k, v, segments, want = (x[:, order] for x in (q, k, v, segments, want))
    got = on_mesh(attention.attend, mesh)(q, k, v, mask=Masking(segments=segments), scale=SCALE)
    assert jnp.abs(got - want).max() < 1e-5
