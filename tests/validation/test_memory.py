"""Predicted memory against what runs published."""

import re
import statistics
from pathlib import Path

import pytest

from muster.validation.memory import GOAL, TERMS, MemoryScores, memory_rows, score_memory
from muster.validation.overfull import NOT_EXPLAINED, overfull, why_overfull
from muster.validation.runs import Run, parse_runs

SOURCES = ("torchtitan", "bloom", "simumax")


@pytest.fixture(scope="module")
def scores(runs: dict[str, Run]) -> MemoryScores:
    return score_memory(runs.values())


@pytest.mark.parametrize(("source", "groups"), [("torchtitan", 11), ("bloom", 38), ("simumax", 15)])
def test_within_the_goal(scores: MemoryScores, source: str, groups: int) -> None:
    errors = [abs(g.error) for g in scores.groups if g.setup.run.source_group == source]
    assert len(errors) == groups
    assert statistics.median(errors) < GOAL / 2
    assert statistics.fmean(errors) < GOAL / 2
    assert max(errors) < 0.15
    assert sum(error > GOAL for error in errors) <= 2


def test_every_large_error_has_a_reason(scores: MemoryScores) -> None:
    for each in scores.groups:
        assert bool(each.reason) == (abs(each.error) > GOAL)
        assert each.reason != "no known reason"


def test_terms_sum_to_what_is_compared(scores: MemoryScores) -> None:
    for row in memory_rows(scores):
        if row["skipped"]:
            continue
        terms = row["terms_gb"]
        assert isinstance(terms, dict)
        left_out = terms["reserve"] if row["measure"] == "allocated" else 0
        assert sum(terms.values()) - left_out == pytest.approx(row["predicted_gb"])
        assert tuple(terms) == TERMS


def test_allocated_memory_is_compared_with_allocated(scores: MemoryScores) -> None:
    measures = {(g.setup.run.source_group, g.measure) for g in scores.groups}
    assert ("simumax", "allocated") in measures
    assert ("bloom", "total") in measures


def test_rows_that_are_not_predicted_say_why(scores: MemoryScores) -> None:
    assert len(scores.skipped) == 15
    rows = memory_rows(scores)
    assert len(rows) == 79 + 15
    assert len({tuple(row) for row in rows}) == 1  # the same keys in every row
    assert all(row["skipped"] is None or row["predicted_gb"] is None for row in rows)


def test_what_ran_fitted(scores: MemoryScores) -> None:
    """A fifth is predicted not to fit; nearly all of those within a third."""
    over = [each for each in scores.ran if each.filled > 1]
    assert len(over) < 0.21 * len(scores.ran)
    assert sum(each.filled > 4 / 3 for each in over) <= 15


def test_no_rows() -> None:
    header = (
        "id,hardware,n_chips,model,n_layers,d_model,d_ff,n_heads,seq_len,"
        "global_batch_sequences,dp,fsdp,tp,pp,measured_step_seconds,measured_memory_gb,complete"
    )
    none = parse_runs(f"{header}\na,qpu9,8,m,2,64,128,4,64,8,8,1,1,1,1.0,5,yes\n", where="x")
    scores = score_memory(none)
    assert scores.groups == ()
    assert memory_rows(scores)[0]["skipped"] == "hardware 'qpu9' is not in the catalogue"


def test_those_that_do_not_fit_are_counted_once_by_why(scores: MemoryScores) -> None:
    parts = overfull(scores.ran)
    over = [each for each in scores.ran if each.filled > 1]
    assert sum(map(len, parts.values())) == len(over) > 0
    assert len(parts) > 3
    for reason, those in parts.items():
        assert all(why_overfull(each) == reason for each in those)
    near = next(those for reason, those in parts.items() if reason.startswith("too much by no"))
    assert all(1 < each.filled <= 1 + GOAL for each in near)
    for reason, those in parts.items():
        for each in those:
            if reason.startswith("logits"):
                assert each.memory.total - each.memory.logits <= each.memory.usable
            if reason == NOT_EXPLAINED:
                assert each.memory.total - each.memory.logits > each.memory.usable


def test_the_documents_doubts_leave_the_counts_to_the_table() -> None:
    doubts = Path("docs/validation.md").read_text("utf-8").partition("## Doubts")[2]
    (line,) = [part for part in doubts.split("\n* ") if part.startswith("Runs predicted not to")]
    assert "the table above" in line
    assert not re.search(r"\d|half|most", line)
