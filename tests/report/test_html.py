import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from muster.planner.plan import Plan
from muster.planner.search import Restrictions
from muster.planner.sweep import sweep_of
from muster.report.assumptions import assumptions
from muster.report.bars import memory_bars, waterfall
from muster.report.html import html_of
from muster.report.plots import Plot
from muster.report.scaling import scaling_plots
from muster.report.strategies import strategies_plot
from muster.roofline.efficiency import NAMES, efficiency
from muster.roofline.software import default_software
from muster.units import format_bytes, format_seconds
from tests.planner.plans import plan_of
from tests.report.pages import Page, read_page

HOSTILE = "</title></style><script>alert(1)</script><img src=http://x.example onerror=alert(2)>\"'&"
PLANS = {
    "dense on a pod": ("llama-3-70b", "v5p:16x20x28", "4M", 15 * 10**12),
    "experts on GPUs": ("mixtral-8x7b", "h100:64", "1M", None),
    "does not fit": ("llama-3-70b", "v5p:2x2x1", "4M", 15 * 10**12),
    "nowhere near": ("llama-3.1-405b", "h100:1", "1M", None),
    "several slices": ("llama-3-8b", "2xv5p:4x4x4", "4M", 10**12),
    "one chip": ("llama-3.2-1b", "v6e:1x1", "64seq", 10**12),
    "tiny": ("llama-3.2-1b", "cpu:8", "64seq", None),
    "mixed layers": ("nemotron-h-56b", "v5p:4x4x8", "1M", None),
}


@cache
def made(name: str) -> Plan:
    model, hardware, batch, tokens = PLANS[name]
    return plan_of(model, hardware, batch, tokens=tokens)


@cache
def page_of(name: str) -> str:
    return html_of(made(name))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return made("dense on a pod")


@pytest.fixture(scope="module")
def html() -> str:
    return page_of("dense on a pod")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return read_page(html)


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_is_a_well_formed_page(name: str) -> None:
    html = page_of(name)
    page = read_page(html)
    assert html.startswith("<!doctype html>")
    assert {"script", "link", "img", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert page.pointers == []
    assert page.handlers == []
    assert not re.search(r"url\(|@import|https?:", html)
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.labelled_by) <= set(page.ids)
    assert page.pictures
    assert all(len(label) > 20 for label in page.pictures)
    assert "nan" not in re.findall(r"[a-z]+", page.text.lower())
    assert "inf" not in re.findall(r"[a-z]+", page.text.lower())
    assert len(html.encode()) < 200_000


def test_the_same_plan_gives_the_same_bytes() -> None:
    again = html_of(plan_of("llama-3.2-1b", "cpu:8", "64seq"))
    assert again == page_of("tiny")


def test_it_says_what_the_plan_says(plan: Plan, page: Page) -> None:
    e = plan.estimate
    assert e.cost_usd is not None
    for text in (
        f"{plan.architecture.name} on {plan.cluster.name}",
        "fits, compute-bound",
        str(plan.layout),
        format_seconds(e.step_seconds),
        f"{e.mfu:.1%}",
        f"{e.tokens_per_second_per_chip:,.0f}",
        f"${e.cost_usd:,.0f}",
        format_bytes(plan.memory.total),
        format_bytes(plan.memory.usable),
        *(format_seconds(value) for value in plan.choice.step.terms.values() if value),
        *plan.reasons,
        *plan.warnings,
        *(rule.statement for rule in plan.rules),
        *(str(other.layout) for other in plan.alternatives),
    ):
        assert text in page.text, text


def test_headings_name_every_picture(page: Page) -> None:
    for heading in (
        *("Memory", "Step", "Why", "Compute and communication against the batch"),
        *("Strong scaling", "MFU against chips", "Cost of the run", "MFU against the batch"),
        *("Alternatives", "Rules of thumb", "Assumptions", "Fitted efficiencies", "The chip"),
    ):
        assert heading in page.headings


def test_crossings_of_the_books_figure_are_its_bounds(plan: Plan, page: Page) -> None:
    bounds = {rule.id: rule.bound for rule in plan.rules}
    assert bounds["fsdp"] == 850
    assert "FSDP alone: hidden from 7.26M tokens, 850 a chip (not here)" in page.text
    assert bounds["fsdp-tensor"] == pytest.approx(113.4, abs=0.1)
    split = "both at their best split: hidden from 992k tokens, 113 a chip (holds here)"
    assert split in page.text


def test_what_does_not_fit_says_so_and_promises_no_times() -> None:
    plan = made("does not fit")
    page = read_page(page_of("does not fit"))
    assert "does not fit" in page.text
    assert "it fits " in page.text
    assert "v5p:2x2x4 (16 chips" in page.text
    assert "missing" in page.text
    assert "(closest)" in page.text
    assert "(chosen)" not in page.text
    assert format_seconds(plan.estimate.train_seconds or 0) not in page.text


def test_an_assumed_mfu_is_called_assumed() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M", mfu=0.4)
    text = read_page(html_of(plan)).text
    assert "40.0%" in text
    assert "assumed" in text


def test_names_from_outside_are_text(plan: Plan) -> None:
    hostile = replace(
        plan,
        architecture=replace(plan.architecture, name=HOSTILE, filled_in=((HOSTILE, HOSTILE),)),
        warnings=(HOSTILE,),
        reasons=(HOSTILE,),
    )
    html = html_of(hostile)
    page = read_page(html)
    assert {"script", "img"}.isdisjoint(page.tags)
    assert page.handlers == page.pointers == []
    assert HOSTILE in page.text
    assert "<script" not in html


def test_curves_hold_what_the_plan_holds() -> None:
    held = Restrictions(fixed={"tensor": 8})
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M", restrictions=held)
    assert "tensor 8" in html_of(plan, restrictions=held)
    assert html_of(plan, restrictions=held) != html_of(plan)


def test_the_bars_add_up(plan: Plan) -> None:
    bars = memory_bars(plan)
    chosen = bars.stacks[0]
    assert chosen.chosen
    assert sum(s.width for s in chosen.segments) == pytest.approx(
        bars.limit * plan.memory.total / plan.memory.usable, abs=0.02
    )
    step = waterfall(plan)
    assert sum(term.width for term in step.terms) == pytest.approx(100, abs=0.02)
    for before, after in zip(step.terms, step.terms[1:], strict=False):
        assert after.start == pytest.approx(before.start + before.width, abs=0.01)
        assert after.hidden_start >= 0


@pytest.mark.parametrize("name", ["dense on a pod", "experts on GPUs", "tiny"])
def test_every_fitted_constant_is_shown_with_its_table(name: str) -> None:
    plan = made(name)
    chip = plan.cluster.chip
    values = efficiency(chip.id, default_software(chip).name)
    shown = {constant.name: constant for constant in assumptions(plan).constants}
    assert tuple(shown) == NAMES
    for constant_name, constant in shown.items():
        assert constant.meaning
        assert constant.table
        if not constant_name.endswith("_seconds"):
            assert float(constant.value) == pytest.approx(getattr(values, constant_name), rel=0.01)


def test_facts_are_shown_with_their_sources(plan: Plan) -> None:
    facts = {fact.name: fact for fact in assumptions(plan).facts}
    assert facts["flops.bf16"].value == "459 TFLOP/s"
    assert all(fact.sources for fact in facts.values())


def test_planning_without_a_page_needs_no_templates() -> None:
    code = (
        "import sys, muster.cli.plan, muster.report.plan_report; "
        "sys.exit(bool({'jinja2', 'plotly'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_step_has_its_expected_error(page: Page) -> None:
    assert re.search(r"predicted, error \N{PLUS-MINUS SIGN}\d+% \(mean of \d+ measured", page.text)


def test_policies_that_are_the_same_are_one_bar() -> None:
    labels = [stack.label for stack in memory_bars(made("experts on GPUs")).stacks]
    assert "remat outputs or full" in labels or labels[0] in {"remat outputs", "remat full"}
    assert not {"remat outputs", "remat full"} <= set(labels)
    on_tpu = [stack.label for stack in memory_bars(made("dense on a pod")).stacks]
    assert {"remat outputs", "remat full"} <= set(on_tpu)


def test_lines_that_coincide_are_one() -> None:
    plot = strategies_plot(made("experts on GPUs"))
    assert plot is not None
    drawn = [tuple(line.points) for line in plot.lines]
    for one, other in combinations(drawn, 2):
        assert any(abs(a[1] / b[1] - 1) > 1e-3 for a, b in zip(one, other, strict=True))
    assert "FSDP alone = both at their best split" in [line.name for line in plot.lines]
    thresholds = [finding.partition(": ")[2] for finding in plot.findings]
    assert len(set(thresholds)) == len(thresholds)


def test_chips_are_counted_in_full_and_tokens_in_binary() -> None:
    plots = {plot.id: plot for plot in _plots()}
    assert "65,536" in [label for _, label in plots["scaling"].x.ticks]
    assert "64M" in [label for _, label in plots["mfu-batch"].x.ticks]


def _plots() -> tuple[Plot, ...]:
    plan = made("dense on a pod")
    sweeps = {
        what: sweep_of(plan, what, Restrictions(), minimize="time") for what in ("chips", "batch")
    }
    return scaling_plots(plan, sweeps["chips"], sweeps["batch"])


def test_curves_of_the_cheapest_do_not_collapse() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M")
    assert "Strong scaling" in read_page(html_of(plan, minimize="chips")).headings
