"""Why: every sentence is of the plan's own numbers, and is there only where it is true."""

import re
from dataclasses import replace

import pytest

from muster.hardware import parse_cluster
from muster.planner.binding import bound_of
from muster.planner.build import make_plan
from muster.planner.choice import preferred
from muster.planner.crossover import crossovers
from muster.planner.differences import TRAFFIC, changed, differences, terms_text
from muster.planner.disagreement import disagreements
from muster.planner.plan import Plan, run_cost
from muster.planner.search import Choice, Minimize, Restrictions, search
from muster.roofline.remat import Remat
from tests.planner.plans import plan_of, rule_of
from tests.planner.small import with_chip

POD = "v5p:16x20x28"
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SECONDS = re.compile(r"([+-]?[\d.]+) (us|ms|s|min|h)\b")


def reason(plan: Plan, words: str) -> str:
    (line,) = (each for each in plan.reasons if words in each)
    return line


def has(plan: Plan, words: str) -> bool:
    return any(words in each for each in plan.reasons)


def again(plan: Plan, minimize: Minimize) -> Plan:
    workload = replace(plan.workload, remat=None)
    return make_plan(plan.architecture, plan.cluster, workload, minimize=minimize)


@pytest.mark.parametrize(
    ("model", "hardware", "batch"),
    [
        ("llama-3-70b", POD, "4M"),
        ("llama-3-8b", "v5p:4x4x4", "64seq"),
        ("qwen3-32b", "b200:256", "4M"),
        ("deepseek-v3", "h800:512", "1920seq"),
        ("mixtral-8x7b", "h100:128", "1024seq"),
    ],
)
def test_the_terms_of_the_runner_up_add_up(model: str, hardware: str, batch: str) -> None:
    plan = plan_of(model, hardware, batch)
    line = reason(plan, "the runner-up, ")
    other = next(each for each in plan.alternatives if each.seconds >= plan.choice.seconds)
    assert str(other.layout) in line
    whole, _, terms = line.partition(" more (")
    (slower,) = (float(n) * SECONDS[unit] for n, unit in _SECONDS.findall(whole)[-1:])
    assert slower == pytest.approx(other.seconds - plan.choice.seconds, rel=0.01)
    listed = sum(float(n) * SECONDS[unit] for n, unit in _SECONDS.findall(terms))
    assert listed == pytest.approx(slower, rel=0.08)
    for attribute, word in (("remat", "remat"), ("microbatches", "microbatch")):
        mine, its = (
            getattr(each if attribute == "remat" else each.layout, attribute)
            for each in (plan.choice, other)
        )
        assert (word in line.partition(" takes ")[0]) is (mine != its)


def test_terms_are_listed_until_they_add_up() -> None:
    found = [("math", 0.010), ("fsdp", -0.004), ("HBM", 0.001), ("data", 1e-6)]
    assert terms_text(found, 0.007001) == "+10.0 ms math, -4.00 ms fsdp, +1.00 ms HBM"
    assert terms_text(found[:1], 0.010) == "+10.0 ms math"
    assert terms_text([("data", 1e-5)], 1e-5) == "+10.0 us data"
    assert terms_text([], 0.0) == "equal in every term"


def test_differences_are_those_of_all_terms() -> None:
    choices = search(
        plan_of("llama-3-8b", "h100:64", "4M").architecture,
        parse_cluster("h100:64"),
        plan_of("llama-3-8b", "h100:64", "4M").workload,
    ).ranked
    first, other = choices[0], choices[-1]
    found = differences(first.step, other.step)
    assert sum(change for _, change in found) == pytest.approx(other.seconds - first.seconds)
    sizes = [abs(change) for _, change in found]
    assert sizes == sorted(sizes, reverse=True)


def test_what_else_changed_is_named() -> None:
    choice = plan_of("llama-3-8b", "h100:64", "4M").choice
    assert changed(choice, choice) == ""
    other = replace(
        choice,
        remat=Remat.FULL if choice.remat is not Remat.FULL else Remat.NONE,
        layout=replace(choice.layout, microbatches=1, virtual_stages=3),
    )
    assert changed(choice, other) == f" with remat {other.remat}, 1 microbatch, 3 virtual stages"


@pytest.mark.parametrize(
    ("model", "hardware", "batch", "restrictions"),
    [
        ("llama-3-70b", POD, "4M", None),
        ("llama-3-70b", "h100:512", "4M", None),
        ("llama-3-70b", "v6e-256", "4M", Restrictions(remat=Remat.OFFLOAD)),
        ("mixtral-8x7b", "v5p:4x4x4", "4M", None),
    ],
)
def test_the_slowest_traffic_is_the_slowest_of_all(
    model: str, hardware: str, batch: str, restrictions: Restrictions | None
) -> None:
    plan = plan_of(model, hardware, batch, restrictions=restrictions)
    seconds = {name: getattr(plan.choice.step.traffic, name) for name in TRAFFIC}
    slowest = max(seconds, key=seconds.__getitem__)
    assert f"the slowest traffic is {TRAFFIC[slowest]}: " in plan.reasons[0]
    fitted = slowest in {"fsdp", "tensor", "sequence", "data", "dcn"}
    assert ("of it can, as fitted on measured runs" in plan.reasons[0]) is fitted


def test_what_waits_on_the_host_can_be_the_slowest() -> None:
    restrictions = Restrictions(remat=Remat.OFFLOAD)
    plan = plan_of("llama-3-70b", "v6e-256", "512seq", seq=8192, restrictions=restrictions)
    assert plan.reasons[0].endswith(" s")
    assert "the slowest traffic is activations to the host's memory and back" in plan.reasons[0]


def test_replicas_have_a_reason() -> None:
    """All batch and sequence ways as weight shards would leave less than a tile of rows each."""
    plan = plan_of("llama-3-70b", POD, "4M")
    assert plan.layout.data > 1
    shards = plan.layout.data * plan.layout.weight_shards
    line = reason(plan, "rather than more fsdp")
    assert line.startswith(f"data {plan.layout.data} rather than more fsdp: {shards}-way sharding")
    assert f"leaves {8192 // shards} of D's 8192 rows a chip, less than a tile of 16" in line
    held = Restrictions(fixed={"data": plan.layout.data})
    assert not has(plan_of("llama-3-70b", POD, "4M", restrictions=held), "rather than")


def test_what_is_left_out_on_gpus_is_said() -> None:
    words = "activations on the host (--remat offload) are left out on GPUs"
    plan = plan_of("llama-3-70b", "h100:64", "1M")
    assert plan.choice.remat is not Remat.NONE
    assert has(plan, words)
    held = Restrictions(remat=plan.choice.remat)
    assert not has(plan_of("llama-3-70b", "h100:64", "1M", restrictions=held), words)
    assert not has(plan_of("llama-3-70b", "v5e-256", "1M"), words)


def test_batches_and_chips_around_are_plans_made_there() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "256seq")
    workload = replace(plan.workload, remat=None)
    around = crossovers(
        plan.architecture, plan.cluster, workload, Restrictions(), plan.choice, examined=1
    )
    assert around.batches
    assert around.chips
    computes = plan.estimate.bound == "compute"
    for point in around.batches:
        there = make_plan(plan.architecture, plan.cluster, point.workload)
        assert (there.choice.layout, there.estimate.bound) == (point.choice.layout, point.bound)
    assert all((point.bound == "compute") is computes for point in around.batches[:-1])
    for point in around.chips:
        there = make_plan(plan.architecture, point.choice.cluster, workload)
        assert there.choice.seconds == point.choice.seconds
    long = crossovers(
        plan.architecture, plan.cluster, workload, Restrictions(), plan.choice, examined=10**6
    )
    assert len(long.batches) == len(long.chips) == 1


@pytest.mark.parametrize("batch", ["4M", "256seq"])
def test_from_which_batch_on_it_is_compute_bound(batch: str) -> None:
    plan = plan_of("llama-3-70b", POD, batch)
    rule = rule_of(plan, "fsdp-tensor")
    assert rule.bound is not None
    line = reason(plan, "these 8,960 chips")
    assert f"from {rule.bound * 8960:,.0f} by the book's rule" in line
    if plan.estimate.bound == "compute":
        assert "stay compute-bound down to" in line or "still compute-bound" in line
    else:
        assert "would become compute-bound only from about" in line or "would still be" in line
        assert "stay compute-bound" not in line


@pytest.mark.parametrize(
    ("hardware", "layout", "says"),
    [
        (
            "h100:512",
            Restrictions(fixed={"stage": 4, "tensor": 8}),
            "its 4 stages keep their weights, and the rule is of gathering them",
        ),
        (
            "h100:512",
            Restrictions(fixed={"stage": 1, "tensor": 8, "fsdp": 1}),
            "no weights are gathered here",
        ),
        (
            "v5p:8x8x8",
            Restrictions(fixed={"microbatches": 4, "fsdp": 256, "sequence": 1}),
            "weights are gathered for each of 4 microbatches",
        ),
    ],
)
def test_a_rule_that_says_otherwise_is_explained_by_the_layout(
    hardware: str, layout: Restrictions, says: str
) -> None:
    plan = plan_of("llama-3-70b", hardware, "1024seq", restrictions=layout)
    computes = plan.estimate.bound == "compute"
    for otherwise in (True, False):
        rules = [
            replace(rule, holds=computes is not otherwise) if rule.id.startswith("fsdp") else rule
            for rule in plan.rules
        ]
        lines = [
            line
            for line in disagreements(
                plan.architecture, plan.cluster, plan.workload, plan.choice, rules
            )
            if "the book's rule calls it" in line
        ]
        assert len(lines) == otherwise
        assert all(says in line and "math is busy" in line for line in lines)


@pytest.mark.parametrize(("hardware", "batch"), [("v6e:1x1", "64seq"), ("h100:1", "512seq")])
def test_one_chip_is_singular(hardware: str, batch: str) -> None:
    plan = plan_of("llama-3.2-1b", hardware, batch)
    assert has(plan, "this chip ")
    for line in (*plan.reasons, *plan.warnings):
        assert not re.search(r"\b1 (chips|microbatches|sequences)\b", line)


def test_a_rule_of_memory_that_says_otherwise_is_explained() -> None:
    plan = plan_of("llama-3-70b", "v5p:4x4x4", "4M")
    assert plan.fits
    assert rule_of(plan, "fewest-chips").holds is False
    line = reason(plan, "the book's rule asks for 114 chips, and it fits on 64")
    assert f"remat {plan.choice.remat}" in line
    assert not has(plan_of("llama-3-70b", "v5p:8x8x8", "4M"), "the book's rule asks for")


def test_the_cheapest_is_explained_by_what_it_costs() -> None:
    plan = again(plan_of("llama-3-70b", "h100:512", "4M", tokens=10**12), "cost")
    line = reason(plan, "the runner-up, ")
    mine = run_cost(plan.workload, plan.choice).cost_usd
    assert mine == plan.estimate.cost_usd
    assert f"against ${mine:,.0f}" in line
    assert " costs " in line
    alternatives = plan.to_json()["alternatives"]
    assert isinstance(alternatives, list)
    costs = [each["cost_usd"] for each in alternatives]
    assert costs == sorted(costs)
    assert all(each["chip_hours"] > 0 for each in alternatives)
    no_run = again(plan_of("llama-3-70b", "h100:512", "4M"), "cost")
    assert "chip-seconds a step" in reason(no_run, "the runner-up, ")


def test_a_hair_of_time_given_for_memory_is_said() -> None:
    """On chips with a little more memory than the quickest fills."""
    given = []
    whole = plan_of("mixtral-8x7b", "h100:128", "1024seq")
    workload = replace(whole.workload, remat=None)
    for more in (1.02, 1.05, 1.1, 1.2, 1.5):
        chip = replace(whole.cluster.chip, hbm_bytes=int(whole.memory.total * more))
        here = with_chip(whole.cluster, chip)
        quickest = search(whole.architecture, here, workload).ranked[0]
        plan = make_plan(whole.architecture, here, workload)
        assert plan.choice.seconds <= 1.01 * quickest.seconds
        assert has(plan, "but fill") is (plan.choice != quickest)
        if plan.choice == quickest:
            continue
        given.append(more)
        assert plan.choice.memory.total <= quickest.memory.total - 0.05 * chip.hbm_bytes
        line = reason(plan, "but fill")
        assert line.startswith(str(quickest.layout))
        assert "of those within 1% of it, one that fills" in line
    assert given


def choice_with(choice: Choice, memory: float, seconds: float) -> Choice:
    """The choice with so much of its memory filled and its math so much longer."""
    usable = choice.memory.usable
    extra = memory * usable - choice.memory.total
    return replace(
        choice,
        memory=replace(choice.memory, activations=choice.memory.activations + extra),
        step=replace(choice.step, compute=choice.step.compute + seconds),
    )


@pytest.mark.parametrize(
    ("first", "others", "taken"),
    [
        (0.80, [(0.10, 0.001)], 0),  # there is room already
        (0.95, [(0.80, 0.005), (0.10, 0.008)], 1),  # the quicker of those with room
        (0.95, [(0.80, 0.02)], 0),  # too slow
        (0.99, [(0.90, 0.005), (0.93, 0.001)], 1),  # no room, but clearly less
        (0.90, [(0.87, 0.005)], 0),  # not clearly less
    ],
)
def test_what_is_taken(first: float, others: list[tuple[float, float]], taken: int) -> None:
    base = plan_of("llama-3-8b", "v5p:4x4x4", "256seq").choice
    choices = [choice_with(base, first, 0.0)]
    choices += [choice_with(base, memory, slower * base.seconds) for memory, slower in others]
    assert preferred(choices[0], choices, "time") is choices[taken]


def test_the_bound_is_the_resource_busy_longest() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "256seq")
    assert bound_of(plan.cluster, plan.choice) == plan.estimate.bound == "compute"
