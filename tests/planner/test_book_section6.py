"""The worked questions of the book's Part 6, through the planner, at the tolerances of the data."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from muster.roofline.memory import book_memory
from muster.roofline.training_time import training_time
from muster.sharding.weights import weight_table
from tests.planner.plans import plan_of, rule_of

DATA = Path(__file__).parent.parent / "data" / "book_section6.toml"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in tomllib.loads(DATA.read_text("utf-8"))["case"]
}
POD = "v5p:16x20x28"
TOKENS = 15 * 10**12


def expected(case: str) -> dict[str, Any]:
    answers: dict[str, Any] = CASES[case]["expect"]
    return answers


def close(case: str, key: str) -> Any:
    return pytest.approx(expected(case)[key], rel=CASES[case]["tol"] or 1e-12)


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ("llama3-70b-hyperparameters", "llama-3-70b"),
        ("llama3-405b-hyperparameters", "llama-3.1-405b"),
        ("llama3-8b", "llama-3-8b"),
    ],
)
def test_hyperparameters(case: str, model: str) -> None:
    a = plan_of(model, POD, "4M").architecture
    answer = expected(case)
    letters = {
        "L": a.num_layers,
        "D": a.d_model,
        "F": a.d_ff,
        "N": a.num_heads,
        "K": a.num_kv_heads,
        "H": a.head_dim,
        "V": a.vocab_size,
    }
    assert letters == {letter: answer[letter] for letter in letters}
    if "total" in answer:
        assert plan_of(model, POD, "4M").params.trainable == answer["total"]


def test_parameters_of_70b() -> None:
    case = "llama3-70b-parameters"
    plan = plan_of("llama-3-70b", POD, "4M")
    table = weight_table(plan.architecture)
    counts = {
        "ffw": sum(w.count for w in table if w.component == "mlp"),
        "vocabulary": sum(w.count for w in table if w.component in {"embedding", "head"}),
        "attention": sum(w.count for w in table if w.component == "attention"),
    }
    assert plan.params.trainable == CASES[case]["exact_total_with_norms"]
    assert plan.params.trainable == close(case, "total")
    for component, count in counts.items():
        assert count == close(case, component)
    assert counts["ffw"] / plan.params.trainable == close(case, "ffw_share")


def test_flops_per_token() -> None:
    case = "llama3-70b-flops-per-token"
    estimate = plan_of("llama-3-70b", POD, "4M").estimate
    assert estimate.flops_per_token == close(case, "flops_per_token")
    assert estimate.flops_per_token / 4.59e14 == close(case, "seconds_on_one_v5p")
    assert plan_of("llama-3.1-405b", POD, "4M").estimate.flops_per_token == pytest.approx(
        expected("llama3-405b-hyperparameters")["flops_per_token"], rel=0.01
    )


def test_flops_of_the_run() -> None:
    case = "llama3-70b-total-flops"
    flops = plan_of("llama-3-70b", POD, "4M", tokens=TOKENS).estimate.train_flops
    assert flops is not None
    assert flops == close(case, "flops")
    alone = training_time(flops, chips=1, peak_flops=4.59e14)
    assert alone.years == close(case, "years_on_one_v5p")
    big = plan_of("llama-3.1-405b", POD, "4M", tokens=TOKENS).estimate.train_flops
    assert big == pytest.approx(expected("llama3-405b-hyperparameters")["flops"], rel=0.01)


def test_days_on_a_pod() -> None:
    case = "llama3-70b-days-on-a-pod"
    estimate = plan_of("llama-3-70b", POD, "4M", tokens=TOKENS, mfu=0.4).estimate
    assert estimate.train_seconds == close(case, "seconds")
    assert estimate.train_days == close(case, "days")
    assert estimate.chip_hours == pytest.approx((estimate.train_days or 0) * 24 * 8960)


def test_fewest_chips() -> None:
    case = "llama3-70b-fewest-chips"
    rule = rule_of(plan_of("llama-3-70b", POD, "4e6", seq=4000, constants="book"), "fewest-chips")
    assert rule.bound == close(case, "chips")
    assert rule.holds
    memory = book_memory(parameters=70_553_706_496, D=8192, L=80, tokens=4e6)
    assert memory.parameters == close(case, "parameters_bytes")
    assert memory.optimizer == close(case, "optimizer_bytes")
    assert memory.activations == close(case, "activation_bytes")
    assert memory.total == close(case, "total_bytes")


def test_days_on_the_fewest_chips() -> None:
    case = "llama3-70b-days-on-fewest-chips"
    flops = plan_of("llama-3-70b", POD, "4M", tokens=TOKENS).estimate.train_flops
    assert flops is not None
    run = training_time(flops, chips=117, peak_flops=4.59e14, mfu=0.4)
    assert run.days == close(case, "days")


def test_fsdp_alone() -> None:
    case = "llama3-70b-fsdp-alone"
    rule = rule_of(plan_of("llama-3-70b", POD, "4M"), "whole-sequences")
    assert rule.bound == expected(case)["max_chips"]
    assert rule.holds is expected(case)["possible_on_8960"]


def test_fsdp_over_batch_and_sequence() -> None:
    case = "llama3-70b-fsdp-and-sequence"
    rule = rule_of(plan_of("llama-3-70b", POD, "4M"), "fsdp")
    assert rule.value == close(case, "tokens_per_chip")
    assert rule.bound == close(case, "bound_tokens_per_chip")
    assert rule.holds is False


def test_fsdp_and_tensor() -> None:
    case = "llama3-70b-mixed"
    plan = plan_of("llama-3-70b", POD, "4M")
    rule = rule_of(plan, "fsdp-tensor")
    assert rule.bound == close(case, "bound_tokens_per_chip")
    assert rule.holds
    assert rule_of(plan, "fsdp-tensor-in-turn").bound == pytest.approx(453, rel=0.01)
    assert rule_of(plan, "x-opt").value == close(case, "x_opt")
    as_axes = CASES[case]["as_axes"]
    assert plan.closed_form is not None
    book = plan.closed_form.layout
    assert (book.fsdp, book.sequence) == (as_axes["data"], as_axes["sequence"])
    assert book.weight_shards == expected(case)["fsdp"]
    assert book.tensor == expected(case)["tensor"]
    assert plan.closed_form.compute_bound


def test_the_search_comes_to_the_books_mix_by_itself() -> None:
    """Compute-bound, batch ways near 2048 and tensor ways near 4, and not FSDP alone."""
    plan = plan_of("llama-3-70b", POD, "4M")
    layout = plan.layout
    batch_ways = layout.data * layout.weight_shards
    assert plan.estimate.bound == expected("llama3-70b-mixed")["bound"]
    assert 1024 <= batch_ways <= 4096
    assert 2 <= layout.tensor <= 8
    assert layout.chips_used == 8192
    assert plan.choice.cluster.slice.shape == (16, 16, 32)


def test_it_says_that_the_sequences_do_not_divide_over_the_pod() -> None:
    plan = plan_of("llama-3-70b", POD, "4M")
    (warning,) = [w for w in plan.warnings if "do not divide" in w]
    assert "8,960 = 2^8*5*7" in warning
    assert "greatest common divisor 256" in warning
    assert "book 2xv5p:16x16x16 (8,192 chips)" in warning
    assert "16x16x16 (4,096 chips" in warning


def test_four_pods() -> None:
    case = "llama3-70b-four-pods"
    plan = plan_of("llama-3-70b", f"4x{POD}", "4M", tokens=TOKENS, mfu=0.4)
    assert plan.cluster.chips == expected(case)["chips"]
    mixed, dcn = rule_of(plan, "fsdp-tensor"), rule_of(plan, "dcn")
    assert mixed.value == close(case, "tokens_per_chip")
    assert mixed.bound == close(case, "bound_tokens_per_chip")
    assert mixed.holds
    assert dcn.value == close(case, "tokens_per_pod")
    assert dcn.bound == close(case, "dcn_bound_tokens_per_pod")
    assert dcn.holds
    assert rule_of(plan, "x-opt").value == close(case, "x_opt_per_pod")
    assert plan.closed_form is not None
    book = plan.closed_form.layout
    assert (book.weight_shards, book.tensor) == (1024, 8)
    assert plan.estimate.train_days == close(case, "days_at_40_mfu")


def test_where_rule_and_step_model_disagree_the_plan_says_why() -> None:
    plan = plan_of("llama-3-70b", f"4x{POD}", "4M")
    assert rule_of(plan, "fsdp-tensor").holds
    assert plan.estimate.bound == "ici"
    assert any("the book's rule calls it compute-bound" in line for line in plan.reasons)


@pytest.mark.parametrize(("batch", "suffix"), [("4M", "4M"), ("16M", "16M")])
def test_405b_on_eight_pods(batch: str, suffix: str) -> None:
    case = "llama3-405b-eight-pods"
    plan = plan_of("llama-3.1-405b", f"8x{POD}", batch, tokens=TOKENS, mfu=0.4)
    rule = rule_of(plan, "fsdp-tensor")
    assert plan.cluster.chips == expected(case)["chips"]
    assert rule.bound == close(case, "bound_tokens_per_chip")
    assert rule.value == close(case, f"tokens_per_chip_at_{suffix}")
    assert rule.holds is expected(case)[f"bound_at_{suffix}"].startswith("compute")
    assert plan.estimate.train_days == close(case, "days_at_40_mfu")


def test_every_case_is_tested() -> None:
    source = Path(__file__).read_text("utf-8")
    by_formulas = {"llama3-70b-memory-per-chip"}  # tests/roofline: the book's own simplification
    assert {case for case in CASES if f'"{case}"' not in source} == set()
    assert by_formulas <= CASES.keys()
