"""`muster models` and `muster params` as a person and as a script see them."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Muster

WIDTH = 100


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_params_of_a_model(muster: Muster) -> None:
    answer = muster("params", "llama-3-70b")
    assert (answer.status, answer.err) == (0, "")
    assert "L=80  D=8192  F=28672  N=64  K=8  H=128  V=128256" in answer.out
    assert "L*D*F" in answer.out
    assert answer.out.count("70,553,706,496") == 4  # three totals and the published one
    assert max(map(len, answer.out.splitlines())) <= WIDTH


def test_params_as_json(muster: Muster) -> None:
    answer = muster("params", "qwen3-0.6b", "--json")
    document = json.loads(answer.out)
    assert set(document) == {"muster", "model", "components", "params", "filled_in", "warnings"}
    assert document["params"]["stored"] == 751_632_384
    assert set(document["components"][0]) == {"name", "formula", "count", "share"}
    assert sum(row["count"] for row in document["components"]) == document["params"]["trainable"]


def test_params_shows_what_was_filled_in_and_what_is_published(muster: Muster) -> None:
    answer = muster("params", "qwen3-1.7b")
    assert "the tied head a second time" in answer.out
    assert "2,031,739,904" in answer.out
    filled = muster("params", "llama-1-7b").out
    assert "num_key_value_heads = null" in filled
    assert "rope_theta = 10000.0" in filled


@pytest.mark.parametrize(
    "arguments",
    [
        ("params", "nosuch"),
        ("params", "/dev/zero"),
        ("params", "src"),
        ("params", ""),
        ("params",),
        ("params", "nosuch", "--json"),
        ("models", "nosuch"),
        ("models", "--sort", "sizes"),
        ("models", "--filter", "params"),
        ("models", "--filter", "colour=red"),
        ("models", "--family", "lama"),
        ("models", "--min-params", "many"),
        ("models", "--nonsense"),
    ],
)
def test_bad_input_is_one_line_and_status_2(muster: Muster, arguments: tuple[str, ...]) -> None:
    answer = muster(*arguments)
    assert answer.status == 2
    assert len(answer.only_line) < 300


def test_the_big_table(muster: Muster) -> None:
    answer = muster("models")
    assert answer.status == 0
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    row = next(line for line in lines if line.startswith("Llama-3.1-405B"))
    assert " ".join(row.split()[1:]) == ("126 16384 53248 128 8 128 128256 - 406B - 81 18 128k no")
    assert "99 models" in answer.out


def test_a_narrow_terminal_gets_fewer_columns(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    lines = muster("models").out.splitlines()
    assert max(map(len, lines)) <= 70
    row = next(line for line in lines if line.startswith("Llama-3.1-405B"))
    assert "406B" in row


def test_the_table_filtered_and_sorted(muster: Muster) -> None:
    answer = muster(
        *("models", "--filter", "params>30B", "--dense", "--sort", "params", "--descending"),
        "--json",
    )
    rows = json.loads(answer.out)["models"]
    assert rows[0]["name"] == "Llama-3.1-405B"
    sizes = [row["params"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 30e9
    assert not any(row["experts"] for row in rows)


def test_no_model_passes(muster: Muster) -> None:
    answer = muster("models", "--min-params", "9P")
    assert answer.status == 0
    assert "no model passes these filters" in answer.out


def test_one_model_in_full(muster: Muster) -> None:
    answer = muster("models", "gemma-2-9b")
    assert "window 4,096" in answer.out
    assert "9,241,705,984" in answer.out
    assert max(map(len, answer.out.splitlines())) <= WIDTH


def test_some_models_and_a_file_side_by_side(muster: Muster, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', "utf-8")
    answer = muster("models", "llama-3-8b", "llama-3-70b", str(tmp_path), "--json")
    rows = json.loads(answer.out)["models"]
    assert [row["name"] for row in rows] == ["Llama-3-8B", "Llama-3-70B", tmp_path.name]
    assert rows[2]["params"] == 124_439_808
