"""The published runs whose programs are read, and the flags that they are compiled with."""

import csv
import re
import sys
from pathlib import Path

import pytest

from muster.validation.runs import RUNS_FILE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from published.compiling import Compiled, compile_row
from published.flags import (
    CONTINUATION_FUSION,
    SPARSE_CORES,
    V5P_SCRIPT,
    name_of,
    taken,
)
from published.page import HEADING, page
from published.reading import Read
from published.rows import ROWS
from published.settings import Row
from published.stacks import STACKS, SUMMER_2025, TODAY

REFUSED = {CONTINUATION_FUSION: "false", "xla_tpu_unheard_of": ""}


def runs() -> dict[str, dict[str, str]]:
    with RUNS_FILE.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_rows_step_is_the_published_one(row: Row) -> None:
    run = runs()[row.id]
    step = run["measured_step_seconds"]
    if not step:  # TFLOP/s are given: tokens of a step over the rate that these come to
        tokens = float(run["per_device_batch"]) * float(run["seq_len"])
        step = str(tokens / float(run["tokens_per_s_per_chip_recomputed"]))
    assert row.step == pytest.approx(float(step), rel=2e-3)
    assert row.settings["per_device_batch_size"] == run["per_device_batch"]


def test_the_sparse_cores_stand_for_what_is_refused() -> None:
    flags = taken([*V5P_SCRIPT, "xla_tpu_unheard_of=1"], REFUSED)
    assert f"{CONTINUATION_FUSION}=false" in flags
    assert flags[-len(SPARSE_CORES) :] == list(SPARSE_CORES)
    assert len(set(map(name_of, flags))) == len(flags)
    assert not any("unheard" in flag for flag in flags)


def test_flags_that_nothing_refuses_stay() -> None:
    assert taken(V5P_SCRIPT, {}) == list(V5P_SCRIPT)
    assert taken(["xla_tpu_rwb_fusion=false"], REFUSED) == ["xla_tpu_rwb_fusion=false"]


def never_compiled(folder: Path) -> list[Read]:
    return [Read(row=row, compiled=compile_row(row, TODAY, folder, None)) for row in ROWS]


def test_no_row_is_dropped_from_the_page(tmp_path: Path) -> None:
    text = page({TODAY: never_compiled(tmp_path)})
    columns = len(STACKS) + 1
    assert f"| within 10 % | {'| 0 of 0 ' * columns}|" in text
    for row in ROWS:
        assert text.count(f"| {row.id} |") == 1 + len(STACKS)
        assert re.search(rf"\| {row.id} \| 202\d-\d\d {'[|] not read ' * columns}\|", text)


def test_a_row_says_what_was_refused() -> None:
    refused = (f"{CONTINUATION_FUSION}=true",)
    left = Compiled(path=None, refused=refused, instead=SPARSE_CORES, error="died")
    text = page({TODAY: [Read(row=ROWS[0], compiled=left)]})
    said = f"flags refused: `{CONTINUATION_FUSION}=true`; SparseCores in their place"
    assert f"- {ROWS[0].id}: {said}; not read: died." in text


def test_what_was_read_before_stays_where_it_was_read(tmp_path: Path) -> None:
    """Neither the other stack's table nor one of programs that are gone changes a table."""
    versions = {"maxtext": "0.1.0", "jax": "0.6.2"}
    program = Compiled(path=tmp_path, refused=("xla_tpu_x=true",), versions=versions)
    read = Read(row=ROWS[1], compiled=program, step=1.1 * ROWS[1].step)
    before = page({SUMMER_2025: [read]})
    line = next(line for line in before.splitlines() if line.endswith("| 13.771 | +10.0% |"))
    nothing = never_compiled(tmp_path)
    for later in ({TODAY: nothing}, {SUMMER_2025: nothing}, {}):
        after = page(later, before)
        glance, today, _, summer = after.split(HEADING)
        assert line in summer
        assert line not in today
        assert "Versions: maxtext 0.1.0, jax 0.6.2." in summer
        assert f"- {ROWS[1].id}: flags refused: `xla_tpu_x=true`." in summer
        assert f"| {ROWS[1].id} | 2023-11 | not read | not read | +10.0% | +10.0% |" in glance
        assert "| within 10 % | | 0 of 0 | 0 of 0 | 1 of 1 | 1 of 1 |" in glance
        assert "| mean of absolute errors | |  |  | 10.0% | 10.0% |" in glance
