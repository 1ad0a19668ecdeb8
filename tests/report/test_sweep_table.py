import pytest
from rich.console import Console

from muster.planner.search import Restrictions
from muster.planner.sweep import WHAT, What, sweep_of
from muster.report.sweep_table import print_sweep, sweep_table
from tests.planner.plans import plan_of


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("tokens", [None, 15 * 10**12])
def test_it_fits_100_columns(what: What, tokens: int | None) -> None:
    plan = plan_of("llama-3-8b", "8xv5p:4x4x8", "16M", tokens=tokens)
    table = sweep_table(sweep_of(plan, what, Restrictions(), minimize="time"))
    console = Console(width=100, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert "->" in capture.get()
    assert ("USD" in capture.get()) is (tokens is not None)


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("llama-3-70b", "v5p:2x2x1", "4M")
    print_sweep(sweep_of(plan, "chips", Restrictions(), minimize="time"))
    out = capsys.readouterr().out
    assert "283 GB a chip of 103 GB" in out
    assert "fsdp 16" in out
    assert "searched in full" in out


def test_over_lengths_attention_counts_and_the_end_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of("llama-3-8b", "h100:64", "1M")
    print_sweep(sweep_of(plan, "seq", Restrictions(), minimize="time"))
    out = " ".join(capsys.readouterr().out.split())
    assert "tok/s a chip MFU causal" in out
    assert "the model's context ends at 8,192 tokens" in out
    assert "none shorter than 512 tokens" in out
    assert "MFU: every matmul, causal" in out


def test_schedules_are_shown_and_bounds_spelt(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("llama-3-8b", "v5p-16", "1M")
    print_sweep(sweep_of(plan, "batch", Restrictions(), minimize="time"))
    out = capsys.readouterr().out
    assert "microbatches" in out
    assert "expected error of a step: +-" in " ".join(out.split())
    assert " ici " not in out
