"""The book's rules of thumb on every kind of network, with the numbers that they come to."""

import pytest

from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.closed_form import candidates
from muster.planner.rules import Rule, rules_of_thumb
from muster.roofline.params import param_counts
from muster.roofline.workload import Workload

EVERYWHERE = ["fewest-chips", "whole-sequences"]
TORUS = [*EVERYWHERE, "fsdp", "tensor", "fsdp-tensor", "fsdp-tensor-in-turn", "x-opt"]
GPUS = [*EVERYWHERE, "fsdp", "tensor"]


def rules_of(
    model: str, hardware: str, sequences: int = 1024, *, constants: str = "documented"
) -> dict[str, Rule]:
    architecture = find_model(model)
    workload = Workload(sequence_length=4096, batch_sequences=sequences)
    found = rules_of_thumb(
        architecture,
        parse_cluster(hardware, constants=constants),
        workload,
        param_counts(architecture).trainable,
    )
    return {rule.id: rule for rule in found}


@pytest.mark.parametrize(
    ("model", "hardware", "ids"),
    [
        ("llama-3-70b", "v5p:16x20x28", TORUS),
        ("llama-3-70b", "4xv5p:16x20x28", [*TORUS, "dcn"]),
        ("llama-3-8b", "v5e-256", TORUS),
        ("llama-3-8b", "v5e:8x8", TORUS),
        ("llama-3-70b", "h100:512", GPUS),
        ("llama-3-70b", "2xh100:512", GPUS),  # GPUs have no slices: one cluster of 1,024
        ("llama-3-8b", "h100:8", GPUS),
        ("llama-3-8b", "h100:1", EVERYWHERE),
        ("llama-3-8b", "v5e-1", EVERYWHERE),
        ("llama-3-8b", "cpu:8", EVERYWHERE),
    ],
)
def test_which_rules_apply(model: str, hardware: str, ids: list[str]) -> None:
    assert list(rules_of(model, hardware)) == ids


@pytest.mark.parametrize(
    ("model", "hardware", "bounds"),
    [
        # alpha = 459e12 / 180e9 = 2550: alpha / 3, 3 F / alpha, alpha^2 / (2 F), four times that
        ("llama-3-70b", "v5p:16x20x28", (850, 33.73, 113.4, 453.6)),
        # alpha = 197e12 / 90e9 = 2188.9: alpha / 2, 2 F / alpha, alpha^2 / F, four times that
        ("llama-3-8b", "v5e-256", (1094.4, 13.10, 334.2, 1336.8)),
        # No wraparound, so lines: alpha, F / alpha, and M_X M_Y = 1/4
        ("llama-3-8b", "v5e:8x8", (2188.9, 6.55, 1336.8, 5347.4)),
    ],
)
def test_on_a_torus(model: str, hardware: str, bounds: tuple[float, ...]) -> None:
    rules = rules_of(model, hardware)
    found = tuple(
        rules[name].bound for name in ("fsdp", "tensor", "fsdp-tensor", "fsdp-tensor-in-turn")
    )
    assert found == pytest.approx(bounds, rel=1e-3)


def test_between_gpu_nodes() -> None:
    """Part 12: C / W with W of a whole node, 8 x 50 GB/s; 64 nodes send 63/64 of the bytes."""
    rules = rules_of("llama-3-70b", "h100:512")
    assert rules["fsdp"].bound == pytest.approx(989.4e12 / 400e9 * 63 / 64, rel=1e-3)
    assert rules["fsdp"].bound == pytest.approx(2433.9, rel=1e-3)
    assert rules["fsdp"].value == 8192
    assert rules["fsdp"].holds


def test_inside_a_gpu_node() -> None:
    bound = rules_of("llama-3-70b", "h100:8")["fsdp"].bound
    assert bound == pytest.approx(989.4e12 / 450e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "bound"),
    [("llama-3-70b", 8.0), ("llama-3-8b", 14336 * 450e9 / 989.4e12), ("qwen3-0.6b", 1.397)],
)
def test_tensor_ways_of_gpus_stay_inside_the_domain(model: str, bound: float) -> None:
    """F W / C is 13.05 for 70B, but NVLink joins 8."""
    rule = rules_of(model, "h100:512")["tensor"]
    assert rule.bound == pytest.approx(bound, rel=1e-3)
    if model == "llama-3-70b":
        assert "13.0 ways" in rule.statement
    assert rule.holds is False
    assert rules_of(model, "h100:4")["tensor"].holds is (bound >= 4)


def test_between_slices() -> None:
    rule = rules_of("llama-3-70b", "4xv5p:16x20x28")["dcn"]
    assert rule.bound == pytest.approx(459e12 / 6.25e9)
    assert rule.value == 1024 * 4096 / 4
    assert rule.holds
    assert rules_of("llama-3-70b", "4xv5p:16x20x28", 64)["dcn"].holds is False


def test_closed_form_time_between_slices() -> None:
    """4 D F / (chips W) beside a forward layer's 4 B D F / (n C): equal at C / W tokens a slice."""
    cluster = parse_cluster("4xv5p:16x20x28")
    workload = Workload(sequence_length=4096, batch_sequences=1024)
    chip_tokens = 459e12 / 6.25e9
    for each in candidates(find_model("llama-3-70b"), cluster, workload)[:3]:
        assert each.math / each.dcn == pytest.approx(1024 * 4096 / 4 / chip_tokens, rel=1e-3)


def test_experts_ask_for_more_tokens() -> None:
    """All experts are gathered, a token uses few: 257 against 9 of 2,048 in DeepSeek-V3."""
    dense, experts = (rules_of(model, "h800:2048") for model in ("llama-3-70b", "deepseek-v3"))
    ratio = (experts["fsdp"].bound or 0) / (dense["fsdp"].bound or 1)
    stored, active = 58 * 257 * 2048 + 3 * 18432, 58 * 9 * 2048 + 3 * 18432
    assert ratio == pytest.approx(stored / active, rel=1e-6)
