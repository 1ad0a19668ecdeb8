"""Gemma 1 to 4: counts with and without towers, local and global layers."""

import math

import pytest

from muster.errors import BadInput
from muster.models.architecture import Attention, Experts
from tests.models.published import published, read, totals, windows


def test_case_9_text_and_vision_of_gemma_3_stand_apart() -> None:
    gemma = published("Gemma-3-12B-it")
    vision = sum(math.prod(weight.shape) for tower in gemma.towers for weight in tower.weights)
    assert [tower.name for tower in gemma.towers] == ["vision"]
    assert totals(gemma).trainable == 12_187_325_040
    assert totals(gemma).trainable - vision == 11_766_034_176
    assert totals(published("Gemma-3-12B-text")).trainable == 11_766_034_176
    assert (gemma.num_layers, gemma.d_model, gemma.num_heads) == (48, 3840, 16)


def test_case_9_a_sparse_file_takes_the_class_defaults() -> None:
    sparse, full = published("Gemma-3-4B-it-SPARSE"), published("Gemma-3-4B-it")
    assert totals(sparse) == totals(full)
    assert sparse.layers == full.layers
    assert ("num_attention_heads", 8) in sparse.filled_in
    assert ("vision_config.num_channels", 3) in sparse.filled_in


def test_gemma_2_alternates() -> None:
    assert windows(published("Gemma-2-2B")) == [4096, None] * 13


def test_gemma_3_has_one_global_layer_in_six() -> None:
    assert windows(published("Gemma-3-1B")) == ([512] * 5 + [None]) * 4 + [512] * 2
    every_third = read("gemma3_text", num_hidden_layers=4, sliding_window_pattern=3)
    assert windows(every_third) == [4096, 4096, None, 4096]


def test_gemma_4_has_wider_heads_in_its_global_layers() -> None:
    gemma = published("Gemma-4-26B-A4B")
    assert windows(gemma) == ([1024] * 5 + [None]) * 5
    mixers = [layer.mixer for layer in gemma.layers if isinstance(layer.mixer, Attention)]
    assert [mixer.head_dim for mixer in mixers] == ([256] * 5 + [512]) * 5
    assert [mixer.num_kv_heads for mixer in mixers] == ([8] * 5 + [2]) * 5
    assert [mixer.own_value for mixer in mixers] == ([True] * 5 + [False]) * 5


def test_gemma_4_has_experts_beside_its_mlp() -> None:
    mlp = published("Gemma-4-26B-A4B").layers[0].mlp
    assert isinstance(mlp, Experts)
    assert mlp.shared is not None
    assert (mlp.d_ff, mlp.shared.d_ff) == (704, 2112)


def test_gemma_4_reads_files_that_say_it_layer_by_layer() -> None:
    keys = {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 300}
    by_layer = read("gemma4_text", **keys, per_layer_config={"5": {"head_dim": 512}})
    assert by_layer.layers == read("gemma4_text", **keys).layers


def test_the_last_layers_of_gemma_3n_have_no_keys_of_their_own() -> None:
    layers = read("gemma3n_text").layers
    own = [layer.mixer.own_kv for layer in layers if isinstance(layer.mixer, Attention)]
    assert own == [True] * 20 + [False] * 15
    assert windows(read("gemma3n_text")) == ([512] * 4 + [None]) * 7


def test_gemma_4_counts_an_audio_tower() -> None:
    # Counted by transformers 5.24.0 for this very config.
    gemma = read(
        "gemma4",
        text_config={
            "num_hidden_layers": 4,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 300,
        },
        vision_config={
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "intermediate_size": 70,
            "use_clipped_linears": True,
            "standardize": True,
            "position_embedding_size": 100,
        },
        audio_config={
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "output_proj_dims": 80,
            "subsampling_conv_channels": [16, 8],
        },
    )
    assert [tower.name for tower in gemma.towers] == ["vision", "audio"]
    assert totals(gemma).trainable == 269_570_288
    assert totals(gemma).untrained == 304


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("gemma4_text", {"use_bidirectional_attention": "all"}),
    ],
)
def test_refuses_encoders(family: str, keys: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"use_bidirectional_attention is .*an encoder"):
        read(family, **keys)
