"""What dense families do their own way, beyond their counts: windows, rotation, odd keys."""

import pytest

from muster.errors import BadInput
from muster.models.architecture import Architecture, Attention, Mlp
from muster.models.families.decilm import ffn_width
from muster.models.hf_config import architecture_from_config
from tests.models.published import published, read, windows


def attentions(architecture: Architecture) -> list[Attention]:
    return [layer.mixer for layer in architecture.layers if isinstance(layer.mixer, Attention)]


def mlp(architecture: Architecture) -> Mlp:
    found = architecture.layers[0].mlp
    assert isinstance(found, Mlp)
    return found


@pytest.mark.parametrize("family", ["olmo3", "cohere2", "exaone4"])
def test_every_fourth_layer_sees_all(family: str) -> None:
    assert windows(read(family, num_hidden_layers=8)) == ([4096] * 3 + [None]) * 2


def test_cwm_starts_with_full_attention() -> None:
    assert windows(read("cwm", num_hidden_layers=5)) == [None, 8192, 8192, 8192, None]


def test_listed_layer_types_win() -> None:
    listed = ["full_attention", "sliding_attention"]
    model = read("ministral", num_hidden_layers=2, layer_types=listed, sliding_window=512)
    assert windows(model) == [None, 512]


def test_a_list_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(BadInput, match="1 entries for 2 layers"):
        read("olmo3", num_hidden_layers=2, layer_types=["full_attention"])


def test_only_some_layers_rotate() -> None:
    rotate = [layer.rotary for layer in attentions(read("cohere2", num_hidden_layers=4))]
    assert rotate == [True, True, True, False]
    rotate = [layer.rotary for layer in attentions(read("smollm3", num_hidden_layers=4))]
    assert rotate == [True, True, True, False]
    rotate = [layer.rotary for layer in attentions(read("exaone4", num_hidden_layers=4))]
    assert rotate == [True, True, True, False]
    whole = read("exaone4", num_hidden_layers=4, sliding_window=None)
    assert all(layer.rotary and layer.window is None for layer in attentions(whole))


def test_alibi_needs_no_rotation() -> None:
    falcon = read("falcon", alibi=True)
    assert falcon.rope is None
    assert not any(layer.rotary for layer in attentions(falcon))
    assert read("falcon").rope is not None
    assert published("BLOOM-176B").rope is None


def test_gpt_neo_alternates_global_and_local() -> None:
    model = read("gpt_neo", num_layers=4, attention_types=[[["global", "local"], 2]])
    assert windows(model) == [None, 256, None, 256]
    with pytest.raises(BadInput, match="attention_types"):
        read("gpt_neo", num_layers=4, attention_types=[[["global"], 3]])
    with pytest.raises(BadInput, match="attention_types"):
        read("gpt_neo", num_layers=4)  # the class's own list is for 24 layers


@pytest.mark.parametrize(
    ("keys", "kv_heads", "norms"),
    [
        ({"num_attention_heads": 71}, 1, 1),
        ({"num_attention_heads": 64, "hidden_size": 4096, "multi_query": False}, 64, 1),
        (
            {
                "num_attention_heads": 128,
                "hidden_size": 8192,
                "num_kv_heads": 8,
                "new_decoder_architecture": True,
            },
            8,
            2,
        ),
        ({"num_attention_heads": 71, "parallel_attn": False}, 1, 2),
    ],
)
def test_falcons(keys: dict[str, object], kv_heads: int, norms: int) -> None:
    model = read("falcon", **keys)
    assert attentions(model)[0].num_kv_heads == kv_heads
    assert len(model.layers[0].norms) == norms


def test_old_files_name_the_width_n_embed() -> None:
    assert read("bloom", n_embed=128, hidden_size=64).d_model == 128


def test_opt_may_have_a_narrow_embedding_and_no_last_norm() -> None:
    model = read("opt", word_embed_proj_dim=512, do_layer_norm_before=False)
    assert model.embedding_dim == 512
    assert model.final_norm is None
    assert model.position_embeddings == 2050


def test_mpt_ignores_what_its_class_does_and_says_so() -> None:
    model = read("mpt", expansion_ratio=3, no_bias=False)
    assert mlp(model).d_ff == 4 * model.d_model
    assert any("expansion_ratio" in note for note in model.notes)
    assert any("no_bias" in note for note in model.notes)
    with pytest.raises(BadInput, match="attn_type"):
        read("mpt", attn_config={"attn_type": "multiquery_attention"})


def test_attention_to_an_encoder_is_refused() -> None:
    with pytest.raises(BadInput, match="add_cross_attention"):
        read("gpt2", add_cross_attention=True)


def test_uneven_heads_are_refused() -> None:
    with pytest.raises(BadInput, match="does not divide num_attention_heads"):
        read("llama", num_attention_heads=32, num_key_value_heads=5)
    with pytest.raises(BadInput, match="does not divide hidden_size"):
        read("gpt2", n_embd=100, n_head=12)
    with pytest.raises(BadInput, match="more than hidden_size"):
        read("llama", hidden_size=16, num_attention_heads=32)


def test_nemotron_nas_prunes_blocks() -> None:
    model = published("Llama-3_3-Nemotron-Super-49B-v1")
    kinds = {(layer.mixer is None, layer.mlp is None) for layer in model.layers}
    assert kinds == {(False, False), (True, False)}
    assert len({layer.mlp.d_ff for layer in model.layers if isinstance(layer.mlp, Mlp)}) > 3
    assert ffn_width(2.625, 8192) == 14_336


BLOCK = {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 1.0}}


@pytest.mark.parametrize(
    "block",
    [
        3,
        {},
        {**BLOCK, "attention": {"n_heads_in_group": 0}},
        {**BLOCK, "attention": {"n_heads_in_group": 7}},
        {**BLOCK, "attention": {"n_heads_in_group": 8, "window_length": -1}},
        {**BLOCK, "attention": {"replace_with_linear": True}},
        {**BLOCK, "ffn": {"ffn_mult": "2"}},
        {**BLOCK, "ffn": {"ffn_mult": -1}},
        {**BLOCK, "ffn": {"ffn_mult": None}},
    ],
)
def test_a_broken_block_is_an_error(block: object) -> None:
    keys = {"hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
    assert len(read("nemotron-nas", **keys, block_configs=[BLOCK]).layers) == 1
    with pytest.raises(BadInput):
        read("nemotron-nas", **keys, block_configs=[BLOCK, block])


def test_family_keeps_the_name_of_its_class() -> None:
    assert read("codegen").family == "codegen"
    assert read("gpt-sw3").family == "gpt-sw3"


def test_exaone4_reads_its_pattern_of_letters() -> None:
    config = {
        "model_type": "exaone4",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
        "sliding_window": 32,
        "sliding_window_pattern": "LLLG",
    }
    architecture = architecture_from_config(config, name="exaone")
    windows = [getattr(layer.mixer, "window", None) for layer in architecture.layers]
    assert windows == [32, 32, 32, None, 32, 32]
    types = ["full_attention", *["sliding_attention"] * 5]
    listed = architecture_from_config({**config, "layer_types": types}, name="exaone")
    assert [getattr(layer.mixer, "window", None) for layer in listed.layers] == [None, *[32] * 5]
