"""What each policy keeps, against the literature's counts and against what runs again."""

import itertools

import pytest
from hypothesis import given

from muster.errors import UnknownName
from muster.models.architecture import Architecture, Layer
from muster.roofline.remat import (
    MIXING,
    Remat,
    parse_remat,
    rerun_matmuls,
    saved_tensors,
)
from muster.roofline.remat_policy import remat_policy

from .cases import architectures, deepseek_v3, dense, gemma_3_12b_text, published

LLAMA = published("Llama-3-70B")
D, F, N, K, H = 8192, 28672, 64, 8, 128


def _sizes(model: Architecture, policy: Remat) -> dict[str, int]:
    return _kept(model, model.layers[0], policy)


def _kept(model: Architecture, layer: Layer, policy: Remat) -> dict[str, int]:
    keeps = remat_policy(policy).keeps
    return {each.name: each.elements for each in saved_tensors(model, layer) if keeps(each.part)}


def test_full_keeps_the_books_one_checkpoint() -> None:
    assert _sizes(LLAMA, Remat.FULL) == {"layer input": D}


def test_outputs_keeps_the_books_two_checkpoints() -> None:
    assert _sizes(LLAMA, Remat.OUTPUTS) == {"layer input": D, "attention output": D}


def test_minimal_keeps_every_matmul() -> None:
    assert _sizes(LLAMA, Remat.MINIMAL) == {
        "layer input": D,
        "attention output": D,
        "query": N * H,
        "key": K * H,
        "value": K * H,
        "context": N * H,
        "context log-sum-exp": N,
        "mlp gate": F,
        "mlp up": F,
    }
    assert _sizes(LLAMA, Remat.OFFLOAD) == _sizes(LLAMA, Remat.MINIMAL)


def test_none_of_a_plain_decoder_is_what_korthikanti_counts() -> None:
    """arXiv:2205.05198: 34 bytes per D without the scores, 2 of them dropout masks."""
    plain = dense(L=1, D=1024, F=4096, N=16, K=16, H=64, V=100, gated=False)
    sizes = _sizes(plain, Remat.NONE)
    sizes.pop("context log-sum-exp")
    assert sum(sizes.values()) == 16 * 1024


def test_none_of_a_gated_decoder_is_near_the_books_twenty() -> None:
    sizes = _sizes(LLAMA, Remat.NONE)
    assert sum(sizes.values()) / D == pytest.approx(20, abs=1)


def test_latent_attention_keeps_its_latents() -> None:
    sizes = _sizes(deepseek_v3(), Remat.MINIMAL)
    assert sizes["query_down"] == 1536
    assert sizes["kv_down"] == 512 + 64
    assert sizes["query_up"] == 128 * 192
    assert sizes["kv_up"] == 128 * 256
    assert sizes["context"] == 128 * 128


def test_experts_keep_what_the_chosen_ones_give() -> None:
    model = deepseek_v3()
    sizes = _kept(model, model.layers[-1], Remat.MINIMAL)
    assert sizes["expert up"] == 8 * 2048
    assert sizes["expert outputs"] == 8 * 7168
    assert sizes["shared up"] == 2048
    assert sizes["router logits"] == 256


def test_norms_after_blocks_need_the_mlp_output() -> None:
    assert "mlp output" in _sizes(gemma_3_12b_text(), Remat.MINIMAL)
    assert "mlp output" not in _sizes(LLAMA, Remat.MINIMAL)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Remat.OUTPUTS, {"layers.attention.output", "layers.mlp.down"}),
        (Remat.FULL, {"layers.mlp.down"}),
    ],
)
def test_what_nothing_reads_does_not_run_again(policy: Remat, kept: set[str]) -> None:
    layer = LLAMA.layers[0]
    everything = rerun_matmuls(LLAMA, layer, policy, whole_layer=True)
    assert everything - rerun_matmuls(LLAMA, layer, policy) == kept
    assert MIXING in everything


def test_keys_and_values_split_over_no_more_than_their_heads() -> None:
    tensors = {t.name: t for t in saved_tensors(LLAMA, LLAMA.layers[0])}
    assert tensors["key"].tensor_ways(16, sequence_sharded=True) == K
    assert tensors["query"].tensor_ways(16, sequence_sharded=True) == 16
    assert tensors["layer input"].tensor_ways(16, sequence_sharded=True) == 16
    assert tensors["layer input"].tensor_ways(16, sequence_sharded=False) == 1


@pytest.mark.parametrize("policy", Remat)
def test_every_policy_is_found_by_its_name(policy: Remat) -> None:
    assert parse_remat(policy.value.upper()) is policy


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(UnknownName, match="did you mean full"):
        parse_remat("fulll")


@given(model=architectures())
def test_a_stricter_policy_never_keeps_more(model: Architecture) -> None:
    for layer in model.layers:
        kept = [
            set(_kept(model, layer, policy))
            for policy in (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL)
        ]
        assert all(after <= before for before, after in itertools.pairwise(kept))


def test_norms_after_blocks_read_what_the_blocks_give() -> None:
    """Norms before blocks count their outputs, norms after them their inputs, by name."""
    sizes = _sizes(gemma_3_12b_text(), Remat.NONE)
    outputs = {"attention output", "mlp output"}
    between = {"layer input", "residual after attention", "norm 0", "norm 1"}
    assert {name for name in sizes if name in outputs or name in between} == outputs | between
    assert "norm 2" not in sizes
