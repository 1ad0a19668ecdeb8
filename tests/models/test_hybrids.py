"""Recurrent and hybrid decoders: which layer has which mixer."""

import pytest

from muster.errors import BadInput
from muster.models.architecture import GatedDeltaNet, Mamba2
from tests.models.published import mixers, mlps, published, read


def test_qwen_3_next_attends_in_every_fourth_layer() -> None:
    qwen = published("Qwen3-Next-80B-A3B")
    assert mixers(qwen) == (["GatedDeltaNet"] * 3 + ["Attention"]) * 12
    delta_net = qwen.layers[0].mixer
    assert isinstance(delta_net, GatedDeltaNet)
    assert delta_net.state_numbers == 32 * 128 * 128
    assert delta_net.conv_channels == 2 * 16 * 128 + 32 * 128


def test_granite_attends_in_four_layers_of_forty() -> None:
    granite = published("Granite-4.0-H-Small")
    attending = [at for at, mixer in enumerate(mixers(granite)) if mixer == "Attention"]
    assert attending == [5, 15, 25, 35]
    assert granite.rope is None
    mamba = granite.layers[0].mixer
    assert isinstance(mamba, Mamba2)
    assert (mamba.num_heads, mamba.head_dim, mamba.state_size) == (128, 64, 128)


def test_nemotron_blocks_are_one_thing_each() -> None:
    nemotron = published("Nemotron-H-56B")
    kinds = list(zip(mixers(nemotron), mlps(nemotron), strict=True))
    assert kinds.count(("Mamba2", "NoneType")) == 54
    assert kinds.count(("Attention", "NoneType")) == 10
    assert kinds.count(("NoneType", "Mlp")) == 54


def test_nemotron_reads_letters_before_its_own_usual_blocks() -> None:
    letters = read("nemotron_h", hybrid_override_pattern="M*-E")
    assert mixers(letters) == ["Mamba2", "Attention", "NoneType", "NoneType"]
    assert mlps(letters) == ["NoneType", "NoneType", "Mlp", "Experts"]
    usual = read("nemotron_h")
    assert mixers(usual) == ["Mamba2", "NoneType", "Attention", "NoneType"]
    assert "layers_block_type" in dict(usual.filled_in)


def test_jamba_attends_and_mixes_by_period_and_offset() -> None:
    jamba = read("jamba")
    assert mixers(jamba) == (["Mamba1"] * 4 + ["Attention"] + ["Mamba1"] * 3) * 4
    assert mlps(jamba) == ["Mlp", "Experts"] * 16


def test_a_head_that_is_never_tied_says_so() -> None:
    tied = read("nemotron_h", tie_word_embeddings=True)
    assert not tied.tied_embeddings
    assert any("never ties" in note for note in tied.notes)


@pytest.mark.parametrize(
    ("family", "keys", "problem"),
    [
        ("nemotron_h", {"hybrid_override_pattern": "MX"}, "it must be letters of M"),
        ("bamba", {"mamba_n_heads": 96}, "mamba_n_heads is 96, which does not make 8,192 channels"),
        ("granitemoehybrid", {"mamba_d_state": "big"}, "mamba_d_state is the text 'big'"),
    ],
)
def test_refuses_sizes_that_cannot_be(family: str, keys: dict[str, object], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        read(family, **keys)
