"""`muster chips`: the table fits a terminal, a page shows every figure, JSON is only JSON."""

import json

import pytest

from muster.cli.main import run
from muster.hardware import all_chips

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _default_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def output(capsys: Capsys, *arguments: str) -> str:
    assert run(["chips", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_the_table_has_a_row_a_chip_and_fits_100_columns(capsys: Capsys) -> None:
    lines = output(capsys).splitlines()
    assert max(map(len, lines)) <= 100
    first_words = [line.split()[0] for line in lines if line.strip()]
    for chip in all_chips():
        assert chip.id in first_words
    row = next(line for line in lines if line.startswith("v5p "))
    assert row.split() == [
        *("v5p", "459", "102.8", "96", "2765"),
        *("3-D", "torus", "180", "6.25", "8960", "4.20"),
    ]
    assert lines[lines.index(row) + 1].split() == ["book", "96", "2800"]


def test_the_book_table_shows_the_documented_figures_below(
    capsys: Capsys,
) -> None:
    lines = output(capsys, "--constants", "book").splitlines()
    row = next(line for line in lines if line.startswith("v5p "))
    assert row.split()[1:5] == ["459", "96", "96", "2800"]
    assert lines[lines.index(row) + 1].split() == ["documented", "102.8", "2765"]


@pytest.mark.parametrize("name", [chip.id for chip in all_chips()])
def test_a_page_shows_every_figure_and_source(capsys: Capsys, name: str) -> None:
    chip = next(chip for chip in all_chips() if chip.id == name)
    shown = output(capsys, name)
    assert max(map(len, shown.splitlines())) <= 100
    words = shown.split()
    for fact in chip.facts:
        assert fact.id.partition(".")[2] in words
        assert fact.confidence in words
        for source in fact.sources:
            assert source in [word.strip(",") for word in words]
    said = " ".join(words)
    assert said.count("sources differ:") == sum(len(fact.alternatives) for fact in chip.facts)


def test_the_page_of_a_tpu_shows_its_rules(capsys: Capsys) -> None:
    said = " ".join(output(capsys, "TPU v5 lite").split())
    assert said.startswith("TPU v5e")
    assert "one of 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16" in said
    assert "only an axis of length 16 wraps around" in said
    assert "v5litepod-1, v5litepod-4" in said
    assert "the number counts chips" in said


def test_the_page_of_an_announced_chip_says_why_it_is_refused(
    capsys: Capsys,
) -> None:
    assert "cannot be planned on" in output(capsys, "tpu8t")


def test_json_of_all(capsys: Capsys) -> None:
    document = json.loads(output(capsys, "--json"))
    assert document["muster"] == 1
    assert [chip["id"] for chip in document["chips"]] == [chip.id for chip in all_chips()]


def test_json_of_one(capsys: Capsys) -> None:
    (chip,) = json.loads(output(capsys, "v5p", "--json"))["chips"]
    assert chip["hbm_bytes"] == 102_785_613_824
    assert chip["network"]["type"] == "torus"
    assert chip["network"]["max_pod_shape"] == "16x20x28"
    assert "v5p-128" in chip["accelerator_types"]
    (fact,) = [fact for fact in chip["facts"] if fact["id"] == "network.axis_bidi_bandwidth"]
    assert fact["value"] == 1.8e11
    assert fact["unit"] == "B/s"
    assert "How to Scale Your Model" in fact["sources"][0]["title"]
    assert fact["alternatives"][0]["value"] == 2e11


def test_json_follows_the_constants(capsys: Capsys) -> None:
    (chip,) = json.loads(output(capsys, "v5p", "--json", "--constants", "book"))["chips"]
    assert (chip["constants"], chip["hbm_bytes"]) == ("book", 96_000_000_000)


@pytest.mark.parametrize("arguments", [["v5q"], ["--constants", "boo"], [""]])
def test_bad_input_is_one_line(capsys: Capsys, arguments: list[str]) -> None:
    assert run(["chips", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("muster: unknown")
    assert shown.err.count("\n") == 1
