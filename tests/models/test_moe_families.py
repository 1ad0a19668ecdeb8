"""Mixtures of experts: active parameters, which layers are sparse, and what each layer sees."""

import pytest

from muster.errors import BadInput
from muster.models.architecture import Attention, Experts
from tests.models.published import mlps, published, read, totals, windows

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}


def test_case_17_mixtral_has_fewer_active_than_total_parameters() -> None:
    counted = totals(published("Mixtral-8x7B"))
    assert counted.trainable == 46_702_792_704
    assert counted.active == 12_879_925_248
    assert round(6 * counted.active / 1e9) == 77
    assert round(6 * counted.trainable / 1e9) == 280


def test_router_biases_are_stored_but_not_trained() -> None:
    counted = totals(published("MiniMax-M2.5"))
    assert counted.untrained == 62 * 256
    assert counted.stored == 228_689_764_864


def test_gpt_oss_alternates_windows_and_full_attention() -> None:
    gpt_oss = published("gpt-oss-20b")
    assert windows(gpt_oss) == [128, None] * 12
    assert all(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer in gpt_oss.layers)


def test_mixtral_windows_hold_for_all_layers_or_none() -> None:
    assert set(windows(published("Mixtral-8x7B"))) == {None}
    assert set(windows(read("mixtral", **SMALL, sliding_window=128))) == {128}


def test_qwen_windows_need_their_flag() -> None:
    assert set(windows(read("qwen2_moe", **SMALL))) == {None}
    on = {"use_sliding_window": True, "sliding_window": 16, "num_hidden_layers": 6}
    alternating = read("qwen2_moe", **SMALL, **on, max_window_layers=4)
    assert windows(alternating) == [16, None, 16, None, None, None]
    assert windows(read("qwen3_moe", **SMALL, **on)) == [16] * 6


def test_qwen_places_experts_by_step_and_exception() -> None:
    placed = read(
        "qwen3_moe", **SMALL, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]
    )
    assert mlps(placed) == ["Mlp", "Experts", "Mlp", "Mlp", "Mlp", "Experts"]


def test_llama_4_chunks_three_layers_of_four() -> None:
    scout = read("llama4_text", num_hidden_layers=8)
    assert windows(scout) == [8192, 8192, 8192, None] * 2
    chunked = [layer.mixer.chunked for layer in scout.layers if isinstance(layer.mixer, Attention)]
    rotary = [layer.mixer.rotary for layer in scout.layers if isinstance(layer.mixer, Attention)]
    assert chunked == rotary == [True, True, True, False] * 2


def test_llama_4_maverick_has_experts_in_every_other_layer() -> None:
    maverick = published("Llama-4-Maverick-17B-128E")
    assert mlps(maverick) == ["Mlp", "Experts"] * 24
    assert maverick.layers[0].mlp is not None
    assert maverick.layers[0].mlp.d_ff == 16384


def test_glm_starts_with_dense_layers() -> None:
    glm = published("GLM-4.5-Air")
    assert mlps(glm) == ["Mlp"] + ["Experts"] * 45


def test_ernie_has_experts_from_a_first_to_a_last_layer() -> None:
    placed = read(
        "ernie4_5_moe",
        **SMALL,
        num_hidden_layers=6,
        moe_layer_start_index=1,
        moe_layer_end_index=4,
        moe_layer_interval=2,
    )
    assert mlps(placed) == ["Mlp", "Experts", "Mlp", "Experts", "Mlp", "Mlp"]


def test_hunyuan_may_say_its_experts_layer_by_layer() -> None:
    sizes = {"num_hidden_layers": 2, "num_experts": 8, "moe_topk": [1, 4]}
    layers = read("hunyuan_v1_moe", **SMALL, **sizes).layers
    used = [layer.mlp.experts_per_token for layer in layers if isinstance(layer.mlp, Experts)]
    assert used == [1, 4]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than the 8 experts there are"),
        ({"num_local_experts": 0}, "num_local_experts is 0; it must be at least 1"),
        ({"num_local_experts": "8"}, "num_local_experts is the text '8'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide"),
    ],
)
def test_refuses_sizes_that_cannot_be(keys: dict[str, object], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read("mixtral", **keys)


def test_refuses_a_kind_of_layer_that_it_does_not_know() -> None:
    with pytest.raises(BadInput, match="layer_types names 'spiral'; known are full_attention"):
        read("gpt_oss", num_hidden_layers=2, layer_types=["spiral", "full_attention"])
