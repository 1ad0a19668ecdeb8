"""What a terminal shows, wide or narrow: whole numbers, units beside them, no blanks at the end."""

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from click.testing import CliRunner

from muster.cli.main import cli
from muster.planner.plan import STEP_TERMS as PREDICTED
from muster.planner.rules import Rule
from muster.planner.search import Restrictions
from muster.report.comparison import print_comparison
from muster.report.plan_report import print_plan
from muster.report.rules_text import condition
from muster.report.words import GLUE, STEP_TERMS, glued
from muster.roofline.remat import parse_remat
from tests.planner.plans import plan_of

CUT = "\N{HORIZONTAL ELLIPSIS}"
WIDTHS = ("60", "72", "100")
COMMANDS = (
    ("chips",),
    ("chips", "v5p"),
    ("models",),
    ("models", "deepseek-v3"),
    ("params", "deepseek-v3"),
    ("validate", "--source", "bloom"),
    ("validate", "--memory", "--source", "bloom"),
    (
        "plan",
        "llama-3-8b",
        "--on",
        "v5p-16",
        "--batch",
        "64seq",
        "--tokens",
        "1T",
        "--sweep",
        "seq",
    ),
    (
        "plan",
        "llama-3-8b",
        "--on",
        "v5p-16",
        "--on",
        "h100:8",
        "--batch",
        "64seq",
        "--tokens",
        "1T",
    ),
)


def printed(show: Callable[[], None]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show()
    return out.getvalue()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_is_cut_off(command: tuple[str, ...], columns: str) -> None:
    result = CliRunner().invoke(
        cli, command, standalone_mode=False, env={"COLUMNS": columns}, catch_exceptions=False
    )
    lines = result.stdout.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= int(columns)
    assert CUT not in result.stdout
    assert GLUE not in result.stdout
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_ends_between_a_number_and_its_unit(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    plan = plan_of("llama-3-70b", "v5p:16x20x28", "4M", tokens=15 * 10**12)
    text = printed(lambda: print_plan(plan))
    words = [line.split() for line in text.splitlines() if line.strip()]
    for line, after in pairwise(words):
        if line[-1].replace(",", "").replace(".", "").isdigit():
            assert after[0].strip("();:,") not in {"ms", "s", "GB", "TB", "MB", "chips", "tokens"}


def test_words_that_stay_together() -> None:
    assert glued("takes 10.3 ms more: +9.60 ms sequence").count(GLUE) == 2
    assert glued("data 4 x fsdp 64 x sequence 8, remat none").count(GLUE) == 4
    assert glued("ways (F = 28,672)") == f"ways (F{GLUE}={GLUE}28,672)"
    assert glued("1,024 sequences of 4,096") == f"1,024{GLUE}sequences of 4,096"


@pytest.mark.parametrize(
    ("value", "bound", "holds", "asked"),
    [
        (8960, 1024, False, "8,960 <= 1,024?"),
        (8960, 114, True, "8,960 >= 114?"),
        (468, 850, False, "468 >= 850?"),
        (8, 33.7, True, "8 <= 33.7?"),
    ],
)
def test_a_rule_asks_what_it_answers(value: float, bound: float, holds: bool, asked: str) -> None:
    rule = Rule(id="r", statement="", value=value, bound=bound, holds=holds)
    assert condition(rule) == (asked, "yes" if holds else "no")


def test_a_no_begins_with_its_numbers_and_the_nearest_yes() -> None:
    plan = plan_of("llama-3-70b", "v5p:2x2x1", "4M")
    lines = printed(lambda: print_plan(plan)).splitlines()
    assert lines[1].startswith("does not fit: ")
    assert "GB usable" in lines[1]
    assert lines[2].startswith("fits ")
    assert "v5p:2x2x4 (16 chips" in " ".join(lines[2:8])
    assert sum("it fits" in line for line in lines) == 0
    assert "if it did fit" in "\n".join(lines)


def test_an_expected_error_stands_beside_every_prediction() -> None:
    measured = printed(lambda: print_plan(plan_of("llama-3-8b", "v5p:4x4x4", "1M")))
    assert "expected error        +-" in measured
    assert "measured set-ups on v5p" in measured
    assert "no bf16 run on" not in measured
    kin = printed(lambda: print_plan(plan_of("llama-3-8b", "v3:8x8", "1M")))
    assert re.search(r"expected error +unknown  no bf16 run on v3 was measured; on v4", kin)
    assert "! no bf16 run on v3 was measured" in kin
    assert "! no bf16 run on b200 was measured: its efficiencies are those of gb200" in printed(
        lambda: print_plan(plan_of("llama-3-8b", "b200:16", "1M"))
    )


def test_one_is_singular() -> None:
    text = printed(lambda: print_plan(plan_of("llama-3.2-1b", "v6e:1x1", "64seq")))
    assert not re.search(r"\b1 (chips|predicted steps)", text)
    assert "v6e:1x1  1 chip; batch" in text


def test_whole_layers_run_again_on_gpus() -> None:
    texts = {}
    for remat in ("outputs", "full"):
        held = Restrictions(fixed={"tensor": 2}, remat=parse_remat(remat))
        plan = plan_of("llama-3-8b", "h100:16", "1M", restrictions=held)
        texts[remat] = printed(lambda plan=plan: print_plan(plan))  # type: ignore[misc]
        assert "every layer runs again whole" in texts[remat]
    again = [
        next(line for line in text.splitlines() if "computed again: remat" in line)
        for text in texts.values()
    ]
    assert again[0].split()[:2] == again[1].split()[:2]
    tpu = plan_of(
        "llama-3-8b", "v5p:2x2x2", "1M", restrictions=Restrictions(remat=parse_remat("full"))
    )
    assert (
        "again whole"
        not in printed(lambda: print_plan(tpu)).partition("Memory")[2].partition("Why")[0]
    )


def test_a_share_of_the_optimizer_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    held = Restrictions(fixed={"tensor": 2, "fsdp": 1})
    print_plan(plan_of("llama-3-8b", "h100:64", "1M", restrictions=held))
    assert "also split over the replicas" in capsys.readouterr().out


def test_the_cheapest_is_shown_with_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M", tokens=10**12)
    print_plan(plan, minimize="cost")
    table = capsys.readouterr().out.partition("Alternatives")[2]
    assert "best first by cost" in table
    assert "USD" in table.splitlines()[1]
    assert f"{plan.estimate.cost_usd:,.0f}" in table


def test_a_comparison_says_how_it_knows() -> None:
    predicted = [plan_of("llama-3-8b", name, "1M", tokens=10**12) for name in ("v5p-16", "h100:8")]
    text = printed(lambda: print_comparison(predicted))
    assert "6N, predicted" in text
    assert "ICI" in text or "compute" in text
    assumed = [plan_of("llama-3-8b", "v5p-16", "1M", mfu=0.4)]
    text = printed(lambda: print_comparison(assumed * 2))
    assert "6N, assumed" in text


def test_a_bold_assumption_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_of("llama-3-70b", "v5p:16x20x28", "4M", mfu=0.9))
    out = " ".join(capsys.readouterr().out.split())
    assert "the MFU of 90.0% that was assumed is 2." in out


def test_every_term_of_a_step_is_shown() -> None:
    assert {*PREDICTED, "host"} == set(STEP_TERMS)


def test_a_weak_price_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_of("llama-3-8b", "h200:16", "1M", tokens=10**12))
    out = " ".join(capsys.readouterr().out.split())
    assert "the price of h200 is of low confidence" in out
    assert "VM part extra" in out


def test_virtual_stages_are_explained() -> None:
    plan = plan_of("llama-3-8b", "v5p:4x4x4", "1M")
    pipelined = replace(
        plan, choice=replace(plan.choice, layout=replace(plan.layout, virtual_stages=4))
    )
    assert "virtual stages: each chip of a pipeline" in printed(lambda: print_plan(pipelined))
