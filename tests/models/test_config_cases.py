"""The configuration cases of the field (numbers of cases.md), each with its right answer.

Cases 9, 14, 15 and 17, of experts, latent attention and towers, stand beside their families.
"""

import math
from typing import Any

import pytest

from muster.errors import BadInput
from muster.models.architecture import Architecture, Attention, Rope
from muster.models.hf_config import architecture_from_config, parse_config
from muster.models.registry import find_model
from muster.roofline.flops import training_flops
from muster.roofline.params import param_counts
from muster.sharding.weights import Weight, weight_table
from tests.models.published import config, published, read, windows


def attention(architecture: Architecture) -> Attention:
    mixer = architecture.layers[0].mixer
    assert isinstance(mixer, Attention)
    return mixer


def rope(architecture: Architecture) -> Rope:
    assert architecture.rope is not None
    return architecture.rope


def weight(architecture: Architecture, name: str) -> Weight:
    return next(weight for weight in weight_table(architecture) if weight.name == name)


def trainable(architecture: Architecture) -> int:
    return param_counts(architecture).trainable


def changed(name: str, **keys: object) -> Architecture:
    return architecture_from_config({**config(name), **keys}, name=name)


def test_case_1_absent_keys_mean_multi_head_untied_and_theta_1e4() -> None:
    model = published("LLaMA-1-7B")
    assert attention(model).num_kv_heads == 32
    assert not model.tied_embeddings
    assert rope(model).theta == 1e4
    assert trainable(model) == 6_738_415_616
    filled = dict(model.filled_in)
    assert filled["num_key_value_heads"] is None
    assert filled["tie_word_embeddings"] is False
    assert filled["rope_theta"] == 1e4


def test_case_4_explicit_head_dim_wider_than_the_model() -> None:
    model = published("Qwen3-4B")
    query = weight(model, "layers.attention.query")
    assert query.shape == (2560, 32, 128)
    assert math.prod(query.shape[1:]) == 4096
    assert trainable(model) == 4_022_468_096


def test_case_5_fused_rows_follow_head_dim() -> None:
    model = published("Qwen3-32B")
    rows = sum(
        math.prod(weight(model, f"layers.attention.{part}").shape[1:])
        for part in ("query", "key", "value")
    )
    assert rows == 10_240


def test_case_6_rotary_tables_have_64_pairs() -> None:
    model = published("Mistral-Nemo-12B")
    assert trainable(model) == 12_247_782_400
    assert rope(model).rotary_dim == 2 * 64


def test_case_7_gemma_has_wide_heads() -> None:
    assert trainable(find_model("gemma-7b")) == 8_537_680_896


def test_case_10_a_tied_head_is_counted_once() -> None:
    assert trainable(published("Llama-3.2-1B")) == 1_235_814_400
    assert trainable(changed("Llama-3.2-1B", tie_word_embeddings=False)) == 1_498_482_688


def test_case_11_a_checkpoint_may_store_the_tied_head() -> None:
    counts = param_counts(find_model("Qwen3-0.6B"))
    assert counts.trainable == counts.active == 596_049_920
    assert counts.stored == 751_632_384


@pytest.mark.parametrize(
    ("name", "stored"), [("Qwen3-1.7B", 2_031_739_904), ("Falcon-7B", 7_217_189_760)]
)
def test_case_11_other_checkpoints_that_do(name: str, stored: int) -> None:
    assert param_counts(find_model(name)).stored == stored


def test_case_12_qwen2_always_has_qkv_biases() -> None:
    model = published("Qwen2.5-0.5B")
    table = weight_table(model)
    assert sum(w.copies for w in table if w.name.endswith(".bias")) == 72
    assert not any(w.name == "layers.attention.output.bias" for w in table)
    assert sum(w.copies for w in table) == 290
    assert trainable(model) == 494_032_768


LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ({"rope_type": "llama3"}, "llama3"),
        ({"type": "yarn"}, "yarn"),
        ({"type": "yarn", "rope_type": "yarn"}, "yarn"),
        ({"type": "linear", "rope_type": "dynamic"}, "dynamic"),
        ({"rope_type": "default"}, None),
    ],
)
def test_case_18_rope_scaling_under_either_name(names: dict[str, str], kind: str | None) -> None:
    model = changed("Llama-3.1-8B", rope_scaling={**LLAMA3_SCALING, **names})
    assert rope(model).scaling == kind
    assert rope(model).factor == 8.0
    assert rope(model).theta == 500_000


def without(name: str, *keys: str) -> dict[str, object]:
    return {key: value for key, value in config(name).items() if key not in keys}


def test_case_20_theta_inside_rope_parameters() -> None:
    new = without("Llama-3.1-8B", "rope_theta", "rope_scaling")
    new["rope_parameters"] = {"rope_theta": 500_000, "rope_type": "llama3", **LLAMA3_SCALING}
    model = architecture_from_config(new, name="new")
    assert rope(model) == rope(published("Llama-3.1-8B"))
    assert "rope_theta" not in dict(model.filled_in)


def test_case_20_parameters_of_each_layer_type() -> None:
    model = read(
        "olmo3",
        rope_parameters={
            "full_attention": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 8.0},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    )
    assert rope(model).theta == 5e5
    assert rope(model).sliding_theta == 1e4
    assert (rope(model).scaling, rope(model).factor) == ("yarn", 8.0)


@pytest.mark.parametrize(
    ("family", "theta"), [("smollm3", 2e6), ("cohere", 5e5), ("helium", 1e5), ("llama", 1e4)]
)
def test_case_20_the_class_has_its_own_theta(family: str, theta: float) -> None:
    keys: dict[str, Any] = {"head_dim": 128} if family == "helium" else {}
    model = read(family, **keys)
    assert rope(model).theta == theta
    assert dict(model.filled_in)["rope_theta"] == theta


def test_case_20_a_class_may_have_its_own_scaling() -> None:
    model = read("apertus")
    assert (rope(model).theta, rope(model).scaling, rope(model).factor) == (12e6, "llama3", 8.0)
    assert "rope_parameters" in dict(model.filled_in)
    assert rope(read("apertus", rope_theta=1e6)).theta == 1e6


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 0},
        {"rope_theta": -1},
        {"rope_theta": None},
        {"rope_theta": "1e4"},
        {"rope_theta": float("nan")},
        {"rope_scaling": "llama3"},
        {"rope_scaling": {"type": 3}},
        {"rope_parameters": {"rope_theta": "5e5"}},
        {"rope_parameters": {"rope_theta": True}},
        {"rope_parameters": {"factor": -2}},
        {"partial_rotary_factor": 1.5},
        {"partial_rotary_factor": 1e308},
        {"partial_rotary_factor": 0},
    ],
)
def test_case_20_a_broken_rope_is_an_error(keys: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        changed("Llama-3-8B", **keys)


def test_a_share_of_each_head_is_rotated() -> None:
    assert rope(published("Pythia-6.9b")).rotary_dim == 32  # rotary_pct 0.25 of 128
    assert rope(published("StableLM-2-1.6B")).rotary_dim == 16  # 0.25 of 64
    assert rope(published("GPT-J-6B")).rotary_dim == 64
    assert rope(read("glm")).rotary_dim == 64  # half of 128


def test_case_21_qwen_windows_need_their_switch() -> None:
    model = published("Qwen2-7B")
    assert set(windows(model)) == {None}
    on = changed("Qwen2-7B", use_sliding_window=True, max_window_layers=20)
    assert windows(on) == [None] * 20 + [131_072] * 8
    assert windows(changed("Qwen2-7B", use_sliding_window=True)) == [None] * 28


def test_case_21_mistrals_window_is_live_and_saves_flops() -> None:
    model = published("Mistral-7B-v0.1")
    assert set(windows(model)) == {4096}
    full = changed("Mistral-7B-v0.1", sliding_window=None)
    assert training_flops(model, 32_768).model < training_flops(full, 32_768).model
    assert training_flops(published("Qwen2-7B"), 8192) == training_flops(
        changed("Qwen2-7B", sliding_window=None), 8192
    )


@pytest.mark.parametrize("name", ["Llama-3.3-70B", "Llama-3.1-70B", "mymodel"])
def test_case_22_scaling_comes_from_the_config_not_the_name(name: str) -> None:
    model = architecture_from_config(config("Llama-3.1-70B"), name=name)
    assert (rope(model).scaling, rope(model).factor) == ("llama3", 8.0)


def test_case_22_by_catalogue_name() -> None:
    assert rope(find_model("llama-3.3-70b")).factor == 8.0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' stands there twice"),
        (b'{"text_config": {"a": 1, "a": 1}}', "'a' stands there twice"),
        (b"[1]", r"holds \[1\], not an object"),
        (b"null", "holds null, not an object"),
        (b"true", "holds true, not an object"),
    ],
)
def test_a_file_that_says_two_things_or_none_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_config(content, where="x")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"model_type": ["llama"]}, r'model_type is \["llama"\]; it must be text'),
        ({"model_type": None}, "has no model_type"),
        ({"model_type": None, "cluster": {}, "layout": {}}, "is a plan, which muster verify"),
        ({"hidden_size": True}, "hidden_size is true; it must be a whole number"),
        ({"tie_word_embeddings": {}}, r"tie_word_embeddings is \{\}; it must be true or false"),
        ({"hidden_size": [None]}, r"hidden_size is \[null\]; it must be a whole number"),
    ],
)
def test_values_are_shown_as_the_file_has_them(keys: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        changed("Llama-3-8B", **keys)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama-3-405b", "did you mean llama-3.1-405b"),
        ("mixtral-8x22b", "did you mean mixtral-8x7b"),
        ("mixtral", "did you mean mixtral-8x7b"),
        ("gemma-2-27b", "did you mean gemma-2-2b, gemma-2-9b"),
        ("qwen2.5-72b", "qwen2.5-32b"),
    ],
)
def test_a_model_that_is_not_there_is_answered_with_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(BadInput, match="Hub id") as refused:
        find_model(typed)
    assert meant in str(refused.value)
