"""The book's bounds: its six numbers, mixtures of experts, and where the times meet."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.roofline.communication import (
    Widths,
    arithmetic_intensity,
    book_widths,
    fsdp_bound,
    gpu_fsdp_bound,
    gpu_tensor_bound,
    layer_times,
    layer_widths,
    mixed_bound,
    mixed_bound_without_overlap,
    optimal_split,
    pod_bound,
    tensor_bound,
)

from .cases import ALPHA, BATCH, F_70B, F_405B, POD, W_DCN, W_ICI, C, book, deepseek_v3, published


def test_alpha() -> None:
    assert arithmetic_intensity(C, W_ICI) == 2550


def test_book_fsdp_and_sequence() -> None:
    case = book()["llama3-70b-fsdp-and-sequence"]
    assert case.agrees("tokens_per_chip", BATCH / POD)
    assert case.agrees("bound_tokens_per_chip", fsdp_bound(ALPHA, M=3))
    assert fsdp_bound(ALPHA, M=3) > BATCH / POD  # communication-bound
    times = layer_times(B=BATCH, D=8192, widths=F_70B, X=POD, Y=1, C=C, W=W_ICI, M_X=3)
    assert not times.compute_bound


def test_book_mixed() -> None:
    case = book()["llama3-70b-mixed"]
    assert case.agrees("bound_tokens_per_chip", mixed_bound(ALPHA, F_70B))
    split = optimal_split(B=BATCH, n=POD, widths=F_70B)
    assert case.agrees("x_opt", split.fsdp)
    assert 2 ** round(math.log2(split.fsdp)) == case.expect["fsdp"]
    tensor = case.expect["tensor"]
    assert tensor < split.tensor < 2 * tensor
    times = layer_times(B=BATCH, D=8192, widths=F_70B, X=2048, Y=4, C=C, W=W_ICI)
    assert times.compute_bound


def test_older_edition_stands_beside() -> None:
    assert mixed_bound_without_overlap(ALPHA, F_70B) == pytest.approx(453, rel=2e-3)


def test_book_four_pods() -> None:
    case = book()["llama3-70b-four-pods"]
    chips = 4 * POD
    assert chips == case.expect["chips"]
    assert case.agrees("tokens_per_chip", BATCH / chips)
    assert case.agrees("bound_tokens_per_chip", mixed_bound(ALPHA, F_70B))
    assert 1 < (BATCH / chips) / mixed_bound(ALPHA, F_70B) < 1.05  # compute-bound, barely
    assert case.agrees("dcn_bound_tokens_per_pod", pod_bound(C, W_DCN))
    assert case.agrees("tokens_per_pod", BATCH / 4)
    assert pod_bound(C, W_DCN) < BATCH / 4
    assert case.agrees("x_opt_per_pod", optimal_split(B=BATCH / 4, n=POD, widths=F_70B).fsdp)


def test_book_405b_on_eight_pods() -> None:
    case = book()["llama3-405b-eight-pods"]
    chips, bound = 8 * POD, mixed_bound(ALPHA, F_405B)
    assert chips == case.expect["chips"]
    assert case.agrees("bound_tokens_per_chip", bound)
    assert case.agrees("tokens_per_chip_at_4M", BATCH / chips)
    assert case.agrees("tokens_per_chip_at_16M", 4 * BATCH / chips)
    assert 0.95 < (BATCH / chips) / bound < 1  # communication-bound, barely
    assert 4 * BATCH / chips > bound


def test_tensor_ways() -> None:
    """Part 6: pure tensor parallelism is bound above F / 2550 = 11."""
    assert math.floor(tensor_bound(ALPHA, F_70B)) == 11
    assert tensor_bound(ALPHA, F_70B, M=2) == 2 * tensor_bound(ALPHA, F_70B)


def test_example_of_part_5() -> None:
    """A 4x4x4 slice, B = 48,000, F = 32,768: X near 13.9, and 99 tokens per chip."""
    widths = Widths(stored=32768, active=32768)
    assert optimal_split(B=48_000, n=64, widths=widths).fsdp == pytest.approx(13.7, rel=0.02)
    assert mixed_bound(ALPHA, widths) == pytest.approx(99, rel=0.01)


def test_a_pod_has_too_few_tokens_a_chip_for_fsdp_alone() -> None:
    """cases.md 29: 1,024 sequences of 4,096 tokens on 8,960 chips."""
    assert fsdp_bound(ALPHA, M=3) > BATCH / POD


def test_gpus() -> None:
    """Part 12: 2475 tokens per H100 across nodes, 1237 over two, 11- to 13-way in a node."""
    assert gpu_fsdp_bound(990e12, 8 * 50e9) == 2475
    assert gpu_fsdp_bound(990e12, 8 * 50e9, nodes=2) == pytest.approx(1237, rel=1e-3)
    assert gpu_tensor_bound(990e12, 400e9, F_70B) == pytest.approx(11.6, rel=1e-2)
    assert gpu_tensor_bound(990e12, 450e9, F_70B) == pytest.approx(13, rel=1e-2)


def test_gpus_and_experts() -> None:
    """Part 12: k = 4 of E = 128 asks for 32 times as many tokens, 79,200."""
    widths = Widths(stored=128 * 2880, active=4 * 2880)
    assert gpu_fsdp_bound(990e12, 8 * 50e9, widths=widths) == 79_200


def test_widths_of_a_mixture() -> None:
    model = deepseek_v3()
    assert book_widths(model, model.layers[0]) == Widths(stored=18432, active=18432)
    assert book_widths(model, model.layers[-1]) == Widths(stored=257 * 2048, active=9 * 2048)


def test_real_widths_agree_with_the_books_simplification() -> None:
    """Gate and attention widen the layer, and its second block doubles the activations' traffic."""
    model = published("Llama-3-70B")
    layer = model.layers[0]
    assert book_widths(model, layer) == F_70B
    widths = layer_widths(model, layer)
    assert widths.stored == widths.active == pytest.approx(52224)
    assert widths.gathers == 2
    real, book_bound = mixed_bound(ALPHA, widths), mixed_bound(ALPHA, F_70B)
    assert real == pytest.approx(book_bound, rel=0.1)


POSITIVE = st.floats(1e2, 1e6)
AXES = st.integers(1, 3)


@st.composite
def widths_of_layers(draw: st.DrawFn) -> Widths:
    active = draw(POSITIVE)
    return Widths(
        stored=active * draw(st.floats(1, 64)), active=active, gathers=draw(st.sampled_from([1, 2]))
    )


@given(widths=widths_of_layers(), alpha=st.floats(100, 1e4), M_X=AXES, M_Y=AXES)
def test_the_mixed_bound_is_where_the_times_meet(
    widths: Widths, alpha: float, M_X: int, M_Y: int
) -> None:
    n = 2**40  # so many that the best split is never held to 1 or n
    B = n * mixed_bound(alpha, widths, M_X=M_X, M_Y=M_Y)
    split = optimal_split(B=B, n=n, widths=widths, M_X=M_X, M_Y=M_Y)
    assert split.fsdp * split.tensor == pytest.approx(n)
    if not 1 < split.fsdp < n:
        return
    times = layer_times(
        B=B, D=64, widths=widths, X=split.fsdp, Y=split.tensor, C=alpha, W=1.0, M_X=M_X, M_Y=M_Y
    )
    assert times.fsdp == pytest.approx(times.tensor)
    assert times.math == pytest.approx(times.communication)


@given(widths=widths_of_layers(), alpha=st.floats(100, 1e4), M_X=AXES, M_Y=AXES)
def test_the_older_bound_is_where_the_sum_meets(
    widths: Widths, alpha: float, M_X: int, M_Y: int
) -> None:
    n = 2**40
    B = n * mixed_bound_without_overlap(alpha, widths, M_X=M_X, M_Y=M_Y)
    split = optimal_split(B=B, n=n, widths=widths, M_X=M_X, M_Y=M_Y)
    if not 1 < split.fsdp < n:
        return
    times = layer_times(
        B=B, D=64, widths=widths, X=split.fsdp, Y=split.tensor, C=alpha, W=1.0, M_X=M_X, M_Y=M_Y
    )
    assert times.math == pytest.approx(times.fsdp + times.tensor)


@given(
    B=st.floats(1e3, 1e9),
    n=st.integers(1, 10**6),
    widths=widths_of_layers(),
    nudge=st.floats(0.1, 10),
)
def test_no_other_split_communicates_less(B: float, n: int, widths: Widths, nudge: float) -> None:
    split = optimal_split(B=B, n=n, widths=widths)
    assert split.fsdp * split.tensor == pytest.approx(n)
    X = min(max(split.fsdp * nudge, 1.000001), n / 1.000001)
    if min(split.fsdp, split.tensor) <= 1 or min(X, n / X) <= 1:
        return

    def communication(ways: float) -> float:
        times = layer_times(B=B, D=64, widths=widths, X=ways, Y=n / ways, C=1.0, W=1.0)
        return times.communication

    assert communication(split.fsdp) <= communication(X) * (1 + 1e-9)


@given(F=POSITIVE, alpha=st.floats(100, 1e4), M=AXES)
def test_a_dense_layer_is_a_mixture_of_one(F: float, alpha: float, M: int) -> None:
    widths = Widths(stored=F, active=F)
    assert fsdp_bound(alpha, M=M, widths=widths) == fsdp_bound(alpha, M=M) == alpha / M
    assert mixed_bound(alpha, widths) == pytest.approx(alpha**2 / (2 * F))
    assert pod_bound(alpha, 1.0, widths=widths) == alpha
