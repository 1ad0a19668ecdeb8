"""`muster validate` as a person and as a script see it."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.validate import validate
from muster.errors import BadInput, UnknownName
from muster.validation.runs import RUNS_FILE

WIDTH = 100
KEYS = {"id", "measured_seconds", "predicted_seconds", "error", "group", "skipped"}


def output_of(arguments: Sequence[str]) -> str:
    result = CliRunner().invoke(
        validate, list(arguments), standalone_mode=False, env={"COLUMNS": str(WIDTH)}
    )
    if result.exception:
        raise result.exception
    assert result.return_value == 0
    return result.stdout


def test_the_tables_fit_in_the_width() -> None:
    out = output_of([])
    assert max(map(len, out.splitlines())) <= WIDTH
    for words in ("by hardware", "by source", "by parallelism", "held back", "likely reason"):
        assert words in out
    assert "804 rows" in out


def test_one_object_a_row() -> None:
    rows = json.loads(output_of(["--json"]))
    assert len(rows) == 804
    assert all(set(row) == KEYS for row in rows)
    for row in rows:
        if row["skipped"] is None:
            assert row["group"]
            assert row["error"] == pytest.approx(
                row["predicted_seconds"] / row["measured_seconds"] - 1
            )


def test_parts_of_the_rows() -> None:
    rows = json.loads(output_of(["--json", "--source", "torchtitan"]))
    assert {row["id"].split("-")[0] for row in rows} == {"torchtitan"}
    by_chip = json.loads(output_of(["--json", "--hardware", "a100-80gb"]))
    assert len(by_chip) == 153 + 83 + 1
    assert len(json.loads(output_of(["--json", "--hardware", "v5p"]))) == 24


def test_incomplete_rows_on_demand() -> None:
    usual = json.loads(output_of(["--json", "--source", "megatron-bridge"]))
    every = json.loads(output_of(["--json", "--source", "megatron-bridge", "--all"]))
    skipped = [sum(row["skipped"] is not None for row in rows) for rows in (usual, every)]
    assert skipped[0] > skipped[1]


def test_rows_of_a_file(tmp_path: Path) -> None:
    lines = RUNS_FILE.read_text(encoding="utf-8").splitlines()
    file = tmp_path / "mine.csv"
    file.write_text("\n".join([*lines[:5], lines[5].replace("maxtext", "strange", 1)]) + "\n")
    rows = json.loads(output_of(["--runs", str(file), "--json"]))
    assert [row["id"] for row in rows][-1] == "strange-005"
    only = tmp_path / "one.csv"
    only.write_text("\n".join([lines[0], lines[-1].replace(",yes,", ",no,")]) + "\n")
    assert "0 predicted" in output_of(["--runs", str(only)])


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read 'nosuch\.csv'"):
        output_of(["--runs", "nosuch.csv"])
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    with pytest.raises(BadInput, match="is empty"):
        output_of(["--runs", str(empty)])
    with pytest.raises(UnknownName, match="torchtitan"):
        output_of(["--source", "torchtitian"])
    with pytest.raises(UnknownName, match="unknown hardware of a run"):
        output_of(["--hardware", "v9"])


def test_a_file_that_is_none_is_named_in_full(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="no regular file"):
        output_of(["--runs", str(pipe)])
    with pytest.raises(BadInput, match=r"cannot read '/nowhere/nope\.csv'"):
        output_of(["--runs", "/nowhere/nope.csv"])
    for nothing in ("", "."):
        with pytest.raises(BadInput, match="--runs names no file"):
            output_of(["--runs", nothing])


def test_what_did_not_fit_is_said_by_why() -> None:
    out = output_of(["--memory", "--source", "tpu-recipes"])
    assert "Predicted not to fit  by the first rule that frees all that is too much" in out
    table = out.partition("Predicted not to fit")[2]
    counted = re.findall(r"^ *(\d+) +(\d+)% +\S", table, re.MULTILINE)
    overfull = re.search(r"(\d+) of \d+ set-ups are predicted", out)
    assert overfull is not None
    assert sum(int(number) for number, _ in counted) == int(overfull.group(1))
    assert all(int(share) > 100 for _, share in counted)


def test_memory_fits_in_the_width_and_has_its_terms() -> None:
    out = output_of(["--memory"])
    assert max(map(len, out.splitlines())) <= WIDTH
    for words in ("By source", "bloom", "optim.", "Likely reasons", "Everything that ran must fit"):
        assert words in out
    rows = json.loads(output_of(["--memory", "--json", "--source", "bloom"]))
    assert all(row["terms_gb"] for row in rows if not row["skipped"])


def test_layouts_fit_in_the_width() -> None:
    out = output_of(["--layouts", "--sample", "5", "--hardware", "v5e"])
    assert max(map(len, out.splitlines())) <= WIDTH
    assert "of 19 bf16 or fp16 set-ups" in out
    rows = json.loads(output_of(["--layouts", "--sample", "2", "--source", "simumax", "--json"]))
    assert len(rows) == 2
    assert all(row["best"]["step_seconds"] > 0 for row in rows)


@pytest.mark.parametrize("question", [[], ["--memory"], ["--layouts"]])
def test_rows_that_cannot_be_read_are_skipped(tmp_path: Path, question: list[str]) -> None:
    """Hardware, formats and words that no one knows: no row stops the others."""
    lines = RUNS_FILE.read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith("simumax-013,"))
    odd = [
        row,
        row.replace("simumax-013", "b").replace("B200", "qpu9"),
        row.replace("simumax-013", "c").replace("bf16", "int3"),
        row.replace("simumax-013", "d").replace(",none,", ",every second moon,"),
        row.replace("simumax-013", "e").replace("Megatron", "Gigatron").replace("simumax", "new"),
    ]
    file = tmp_path / "odd.csv"
    file.write_text("\n".join([lines[0], *odd]) + "\n", encoding="utf-8")
    rows = json.loads(output_of(["--runs", str(file), "--json", *question]))
    assert any(not each["skipped"] for each in rows)
    text = output_of(["--runs", str(file), *question])
    assert "Traceback" not in text


def test_one_question_at_a_time() -> None:
    with pytest.raises(BadInput, match="two questions"):
        output_of(["--memory", "--layouts"])
    for arguments in (["--sample", "3"], ["--layouts", "--all", "--sample", "3"]):
        with pytest.raises(BadInput, match="--sample N"):
            output_of(arguments)
