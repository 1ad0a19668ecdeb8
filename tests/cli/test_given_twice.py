"""What contradicts itself on the command line, or could be written in two ways, is not guessed."""

from pathlib import Path

import pytest

from tests.cli.conftest import Muster

PLAN = ("plan", "llama-3-8b", "--on", "v5p-16", "--batch", "64seq", "--seq", "4096")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--fix", "tensor=2", "--fix", "tensor=4"), "--fix tensor is given twice"),
        (("--batch", "128seq"), "--batch is given twice"),
        (("--remat", "none", "--remat", "full"), "--remat is given twice"),
        (("--sweep", "batch", "--sweep", "seq"), "--sweep is given twice"),
        (("--sweep", "chips", "--minimize", "chips"), "--minimize chips"),
        (("--mfu", "1"), "1% or 100%"),
    ],
)
def test_what_contradicts_itself_is_refused(
    muster: Muster, arguments: tuple[str, ...], says: str
) -> None:
    outcome = muster(*PLAN, *arguments)
    assert outcome.status == 2
    assert says in outcome.only_line


def test_flags_may_stand_twice(muster: Muster) -> None:
    assert muster(*PLAN, "--json", "--json").status == 0


def test_words_in_any_case(muster: Muster) -> None:
    words = ("--fix", "Tensor=2", "--minimize", "COST", "--remat", "FULL", "--sweep", "Batch")
    assert muster(*PLAN, *words).status == 0


def test_out_and_html_are_two_files(muster: Muster, tmp_path: Path) -> None:
    both = str(tmp_path / "both")
    outcome = muster(*PLAN, "--out", both, "--html", both)
    assert outcome.status == 2
    assert "--out and --html name the same file" in outcome.only_line
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "both")
    assert muster(*PLAN, "--out", both, "--html", str(link)).status == 2
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.parametrize("bad", ["missing/page.html", "x" * 300, "."])
def test_no_file_is_written_where_one_cannot_be(muster: Muster, tmp_path: Path, bad: str) -> None:
    good = tmp_path / "plan.json"
    outcome = muster(*PLAN, "--out", str(good), "--html", str(tmp_path / bad))
    assert outcome.status == 2
    assert outcome.only_line.startswith("muster: --html: cannot write")
    assert len(outcome.only_line) < 300
    assert list(tmp_path.iterdir()) == []


def test_a_bad_name_is_refused_before_the_model_is_looked_for(muster: Muster) -> None:
    outcome = muster("plan", "no-such-model", *PLAN[2:], "--out", "/nowhere/plan.json")
    assert "--out" in outcome.only_line


def test_a_batch_that_the_tool_prints_can_be_given_to_it(muster: Muster) -> None:
    outcome = muster("plan", "llama-3-8b", "--on", "v5p-16", "--batch", "1.02M", "--seq", "4096")
    assert outcome.status == 0
    assert "261 x 4,096" in outcome.out
    assert "261.12 sequences" in outcome.out
