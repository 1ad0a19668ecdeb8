"""Counting FLOPs: the book's cases, hand-counted models, and identities."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.models.architecture import Architecture, Layer
from muster.roofline.flops import (
    INDEXER_SCORES,
    attention_flops,
    attention_pairs,
    indexer_flops,
    six_n,
    training_flops,
)
from muster.roofline.mfu import active_params
from muster.roofline.remat import Remat

from .cases import (
    CORPUS,
    MIXERS,
    architectures,
    book,
    decoder,
    deepseek_v3,
    dense,
    mixture,
    published,
)

LENGTHS = st.integers(1, 600)


def test_book_flops_per_token() -> None:
    case = book()["llama3-70b-flops-per-token"]
    total = six_n(active_params(published("Llama-3-70B"))).total
    assert case.agrees("flops_per_token", total)
    assert case.agrees("seconds_on_one_v5p", total / 4.59e14)


def test_book_total_flops() -> None:
    assert book()["llama3-70b-total-flops"].agrees("flops", six_n(70 * 10**9).total * CORPUS)


def test_book_405b_flops() -> None:
    case = book()["llama3-405b-hyperparameters"]
    total = six_n(active_params(published("Llama-3.1-405B"))).total
    assert case.agrees("total", total / 6)
    assert case.agrees("flops_per_token", total)
    assert case.agrees("flops", total * CORPUS)


@pytest.mark.parametrize(
    ("name", "case"),
    [("Llama-3-8B", "llama3-8b"), ("Llama-3.1-405B", "llama3-405b-hyperparameters")],
)
def test_book_parameters(name: str, case: str) -> None:
    assert book()[case].agrees("total", active_params(published(name)))


def test_six_n_is_two_forward_and_four_backward() -> None:
    rule = six_n(10)
    assert (rule.forward, rule.backward, rule.total) == (20, 40, 60)


def test_mixture_counts_active_parameters_only() -> None:
    """cases.md 17: Mixtral at 6N is 77 GFLOP a token, not 280."""
    mixtral = published("Mixtral-8x7B")
    assert active_params(mixtral) == 12_879_925_248
    assert six_n(active_params(mixtral)).total / 1e9 == pytest.approx(77.28, rel=1e-4)
    assert six_n(46_702_792_704).total / 1e9 == pytest.approx(280, rel=1e-2)


def test_llama_3_70b_by_hand() -> None:
    T, D, F, L, N, K, H, V = 4096, 8192, 28672, 80, 64, 8, 128, 128256
    count = training_flops(published("Llama-3-70B"), T)
    assert {part.name: part.forward for part in count.components} == {
        "attention projections": 2 * T * L * (2 * D * N * H + 2 * D * K * H),
        "attention scores": 2 * L * N * 2 * H * (T * (T + 1) // 2),
        "mlp": 2 * T * L * 3 * D * F,
        "head": 2 * T * D * V,
    }
    assert count.recompute == 0
    assert count.not_counted == ()


def test_full_attention_is_the_books_12_bttnh() -> None:
    T, L, N, H = 4096, 32, 32, 128
    count = training_flops(published("Llama-3-8B"), T, causal=False)
    assert count.component("attention scores").total == 12 * L * T * T * N * H


def test_latent_attention_uses_its_own_dims() -> None:
    model = deepseek_v3()
    T = 8192
    scores = training_flops(model, T, causal=False).component("attention scores")
    assert scores.forward == 2 * 61 * 128 * (192 + 128) * T * T


@pytest.mark.parametrize("T", [100, 2048, 8192])
def test_sparse_attention_picks_keys_and_scores_all(T: int) -> None:
    sparse, full = deepseek_v3(top_k=2048), deepseek_v3()
    mixer = sparse.layers[0].mixer
    assert mixer is not None
    pairs = sum(min(2048, i) for i in range(1, T + 1))
    assert attention_flops(mixer, T, causal=True) == 2 * 128 * 320 * pairs
    assert indexer_flops(mixer, T, causal=True) == 2 * 64 * 128 * T * (T + 1) // 2
    assert training_flops(full, T).component(INDEXER_SCORES).forward == 0


def test_published_windows_matter_only_where_the_config_uses_them() -> None:
    """cases.md 21: live in Mistral 7B v0.1, switched off in Qwen2 7B."""
    T, W = 8192, 4096
    qwen = training_flops(published("Qwen2-7B"), T).component("attention scores")
    assert qwen.forward == 28 * 4 * 28 * 128 * (T * (T + 1) // 2)
    mistral = training_flops(published("Mistral-7B-v0.1"), T).component("attention scores")
    assert mistral.forward == 32 * 4 * 32 * 128 * (W * T - W * (W - 1) // 2)


def test_experts_router_and_shared_are_counted_apart() -> None:
    T, D = 4096, 7168
    count = training_flops(deepseek_v3(), T)
    assert count.component("router").forward == 2 * T * 58 * D * 256
    assert count.component("routed experts").forward == 2 * T * 58 * 8 * 3 * D * 2048
    assert count.component("shared experts").forward == 2 * T * 58 * 3 * D * 2048
    assert count.component("mlp").forward == 2 * T * 3 * 3 * D * 18432


def test_full_remat_of_a_whole_layer_is_nearly_the_books_8n() -> None:
    model = published("Llama-3-70B")
    T = 128
    count = training_flops(model, T, remat=Remat.FULL, whole_layer=True)
    layers_only = count.hardware - count.component("head").total
    per_token = layers_only / T - count.component("attention scores").total / T
    in_layers = (active_params(model) - 2 * 128256 * 8192 - 161 * 8192) * T
    assert per_token * T == 8 * in_layers


@pytest.mark.parametrize("policy", [Remat.OUTPUTS, Remat.FULL])
def test_few_checkpoints_are_nearer_8_than_6(policy: Remat) -> None:
    model = published("Llama-3-70B")
    for whole_layer in (False, True):
        count = training_flops(model, 4096, remat=policy, whole_layer=whole_layer)
        assert count.hardware_per_token / active_params(model) > 7


def test_recurrences_say_what_is_left_out() -> None:
    names = [
        note
        for layer_count in [training_flops(model, 64) for model in _one_layer_each()]
        for note in layer_count.not_counted
    ]
    assert any("Mamba2" in note for note in names)
    assert any("GatedDeltaNet" in note for note in names)


def _one_layer_each() -> list[Architecture]:
    return [decoder((Layer(mixer=mixer, mlp=None),), D=64, V=100) for mixer in MIXERS]


@given(T=LENGTHS, W=st.integers(1, 700), chunked=st.booleans())
def test_pairs_are_what_the_mask_lets_through(T: int, W: int, chunked: bool) -> None:
    def sees(query: int, key: int) -> bool:
        near = query // W == key // W if chunked else query - key < W
        return key <= query and near

    small = min(T, 60)
    pairs = sum(sees(q, k) for q in range(small) for k in range(small))
    assert attention_pairs(small, causal=True, window=W, chunked=chunked) == pairs
    both = sum(sees(q, k) or sees(k, q) for q in range(small) for k in range(small))
    assert attention_pairs(small, causal=False, window=W, chunked=chunked) == both


@given(T=LENGTHS, W=st.integers(1, 700))
def test_windowed_is_at_most_causal(T: int, W: int) -> None:
    windowed, whole = attention_pairs(T, causal=True, window=W), attention_pairs(T, causal=True)
    assert windowed <= whole
    assert (windowed == whole) == (W >= T)
    assert attention_pairs(T, causal=True, window=W, chunked=True) <= windowed


@given(model=architectures(), T=LENGTHS)
def test_causal_is_at_most_full(model: Architecture, T: int) -> None:
    assert training_flops(model, T).model <= training_flops(model, T, causal=False).model


@given(model=architectures(), T=LENGTHS, policy=st.sampled_from(Remat), whole=st.booleans())
def test_totals_are_sums_of_parts(
    model: Architecture,
    T: int,
    policy: Remat,
    whole: bool,
) -> None:
    count = training_flops(model, T, remat=policy, whole_layer=whole)
    assert count.hardware == sum(part.total for part in count.components)
    assert count.backward == 2 * count.forward
    assert all(part.recompute <= part.forward for part in count.components)


@given(model=architectures(), T=LENGTHS, whole=st.booleans())
def test_remat_never_computes_less_than_a_milder_policy(
    model: Architecture,
    T: int,
    whole: bool,
) -> None:
    costs = [
        training_flops(model, T, remat=policy, whole_layer=whole).recompute
        for policy in (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL)
    ]
    assert costs == sorted(costs)
    assert costs[0] == costs[1] == 0


@given(model=architectures(), T=LENGTHS)
def test_a_tied_head_costs_as_much_as_an_untied_one(model: Architecture, T: int) -> None:
    tied, untied = (replace(model, tied_embeddings=tied) for tied in (True, False))
    assert training_flops(tied, T) == training_flops(untied, T)
    assert active_params(untied) - active_params(tied) == model.d_model * model.vocab_size


def test_a_dense_model_is_a_mixture_of_one() -> None:
    one = dense(L=4, D=256, F=512, N=4, K=2, H=64, V=1000)
    other = mixture(L=4, D=256, F=512, N=4, K=2, H=64, V=1000, E=1, k=1)
    dense_mlp = training_flops(one, 128).component("mlp").forward
    assert training_flops(other, 128).component("routed experts").forward == dense_mlp
