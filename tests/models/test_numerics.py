"""What a model computes beside its shapes, read from its config, and what is refused by name."""

import math
from typing import Any

import numpy as np
import pytest

from muster.errors import BadInput
from muster.models.hf_config import architecture_from_config
from muster.models.numerics import FAMILIES, Numerics, RotaryFrequencies, numerics, untrainable
from muster.models.registry import catalogue_names, find_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "rope_theta": 5e5,
}
MOE = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def read(**changes: Any) -> Numerics:
    return numerics(architecture_from_config(LLAMA | changes, name="tiny"))


def test_what_a_file_leaves_out_is_the_classes_own() -> None:
    """transformers 5.24.0: rms_norm_eps of LlamaConfig 1e-6, of MixtralConfig 1e-5."""
    assert read() == Numerics(
        norm_eps=1e-6,
        activation="silu",
        rope=RotaryFrequencies(theta=5e5),
        initializer_range=0.02,
    )
    assert read(model_type="mixtral", **MOE).norm_eps == 1e-5


def test_stated_values_win() -> None:
    found = read(rms_norm_eps=1e-5, hidden_act="gelu_pytorch_tanh", initializer_range=0.006)
    assert (found.norm_eps, found.activation, found.initializer_range) == (1e-5, "gelu_tanh", 0.006)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_linear_scaling_divides_every_frequency(key: str, kind: str) -> None:
    found = read(**{key: {kind: "linear", "factor": 4.0, "rope_theta": 5e5}}).rope
    plain = RotaryFrequencies(theta=5e5).inverse_frequencies(16)
    assert found.inverse_frequencies(16) == pytest.approx([f / 4 for f in plain])


def test_llama3_scaling_has_its_three_ranges() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    found = read(rope_scaling=scaling).rope
    assert found == RotaryFrequencies(
        theta=5e5, scaling="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_context=8192,
    )  # fmt: skip
    plain = np.asarray(RotaryFrequencies(theta=5e5).inverse_frequencies(128))
    ratio = np.asarray(found.inverse_frequencies(128)) / plain
    wavelength = 2 * math.pi / plain
    assert ratio[wavelength < 8192 / 4] == pytest.approx(1.0)
    assert ratio[wavelength > 8192] == pytest.approx(1 / 8)
    between = ratio[(wavelength > 8192 / 4) & (wavelength < 8192)]
    assert len(between) > 3
    assert np.all(np.diff(between) < 0)
    assert np.all((between > 1 / 8) & (between < 1))


def test_routers() -> None:
    assert read(model_type="mixtral", **MOE).normalizes_experts
    assert read(model_type="mixtral", **MOE).router_loss == 0.001
    assert read(model_type="mixtral", router_aux_loss_coef=0.02, **MOE).router_loss == 0.02
    assert not read(model_type="qwen3_moe", norm_topk_prob=False, **MOE).normalizes_experts
    assert read(model_type="qwen3_moe", norm_topk_prob=True, **MOE).normalizes_experts
    assert not read(model_type="qwen3_moe", **MOE).normalizes_experts  # the class's default
    assert read().router_loss == 0.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "gemma2"}, "the trainer knows llama, .* not gemma2"),
        ({"hidden_act": "relu6"}, "activation relu6 is not one of"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary scaling yarn is not one"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rotary scaling dynamic"),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "num_hidden_layers": 4, **MOE},
            "its layers are of different shapes",
        ),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=f"^tiny cannot be trained here: .*{why}"):
        read(**changes)


def test_every_catalogued_model_is_known_or_says_why_not() -> None:
    trained = set()
    for name in catalogue_names():
        model = find_model(name)
        problem = untrainable(model)
        if problem is None:
            trained.add(model.family)
            assert numerics(model).norm_eps > 0
        else:
            assert "\n" not in problem
    assert trained <= set(FAMILIES)
    assert {"llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"} <= trained
