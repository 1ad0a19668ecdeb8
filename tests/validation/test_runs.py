"""Reading files of runs: what is refused, what is kept with a problem, what is ignored."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.validation.runs import RUNS_FILE, Run, load_runs, parse_runs
from muster.validation.setup import Setup, Skipped, setup_of

with RUNS_FILE.open(encoding="utf-8", newline="") as stream:
    HEADER, *ROWS = list(csv.reader(stream))


def as_text(header: list[str], *rows: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return text.getvalue()


def test_own_rows() -> None:
    runs = load_runs()
    assert len(runs) == 804
    assert sum(run.complete is True for run in runs) == 530
    assert not any(run.problems for run in runs)
    assert len({run.id for run in runs}) == len(runs)
    assert all(run.source for run in runs)


def test_values_have_their_kinds(runs: dict[str, Run]) -> None:
    run = runs["maxtext-001"]
    assert (run.n_chips, run.tied_embeddings, run.gated_mlp) == (64, True, False)
    assert (run.params_billion, run.per_device_batch) == (21.945, 16.0)
    assert run.n_experts is None
    assert run.line == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'f' is empty; it needs a header with id, hardware"),
        ("id,hardware\na,b\n", "'f' line 1: no column n_chips, model"),
        (as_text(HEADER), "'f' has a header and no rows"),
        (as_text([*HEADER, "dp"], [*ROWS[0], "1"]), "'f' line 1: column dp stands twice"),
        (
            as_text(
                [name for name in HEADER if "measured" not in name and "recomputed" not in name],
                ROWS[0],
            ),
            "'f' line 1: no measurement; add one of measured_step_seconds",
        ),
    ],
)
def test_what_is_no_table_of_runs_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_runs(text, where="f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "runs.csv"
    binary.write_bytes(b"id,\xff\xfe\x00")
    for path in (binary, tmp_path, tmp_path / "nosuch.csv"):
        with pytest.raises(BadInput, match=r"^(cannot read )?'[^\n]*$"):
            load_runs(path)


def test_unknown_columns_and_blank_lines_do_not_matter() -> None:
    text = as_text([*HEADER, "weather"], [*ROWS[0], "fine"], [], ["", " "], [*ROWS[1], "rain"])
    first, second = parse_runs(text, where="f")
    own = load_runs()
    assert first == own[0]
    assert (second.id, second.line, second.problems) == (own[1].id, 5, ())


def test_columns_in_another_order() -> None:
    text = as_text(HEADER[::-1], ROWS[0][::-1])
    assert parse_runs(text, where="f")[0] == load_runs()[0]


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(as_text(HEADER, ROWS[0]), encoding="utf-8-sig")
    assert load_runs(path)[0].id == "maxtext-001"


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        ("n_chips", "many", "line 2, column n_chips: 'many' is not a number"),
        ("n_chips", "0", "line 2, column n_chips: is zero"),
        ("dp", "1.5", "line 2, column dp: '1.5' is not a whole number"),
        ("dp", "-2", "line 2, column dp: '-2' is not a number that can be"),
        ("seq_len", "nan", "line 2, column seq_len: 'nan' is not a number that can be"),
        ("gated_mlp", "perhaps", "line 2, column gated_mlp: 'perhaps' is neither true nor false"),
    ],
)
def test_a_bad_cell_skips_its_row_and_names_the_place(column: str, cell: str, problem: str) -> None:
    row = list(ROWS[0])
    row[HEADER.index(column)] = cell
    bad, good = parse_runs(as_text(HEADER, row, ROWS[1]), where="f")
    skipped = setup_of(bad)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == problem
    assert isinstance(setup_of(good), Setup)


def test_a_bad_cell_of_a_check_column_does_not_skip_its_row() -> None:
    row = list(ROWS[0])
    row[HEADER.index("measured_memory_gb")] = "about 60"
    assert isinstance(setup_of(parse_runs(as_text(HEADER, row), where="f")[0]), Setup)


def test_a_row_with_too_few_cells() -> None:
    (run,) = parse_runs(as_text(HEADER, ROWS[0][:20]), where="f")
    assert run.problems == ("line 2: 20 cells under 58 columns",)


cells = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "0", "1", "-1", "1e9", "1e400", "7", "true", "1,024", "x" * 5000, "inf"]),
    st.integers(-10, 10**18).map(str),
    st.floats().map(str),
    st.sampled_from([cell for row in ROWS[::40] for cell in row]),
)


@settings(max_examples=150, deadline=None)
@given(
    row=st.sampled_from(ROWS),
    changes=st.dictionaries(st.sampled_from(range(len(HEADER))), cells, min_size=1, max_size=4),
)
def test_any_mangled_cell_gives_a_row_a_skipped_row_or_one_line(
    row: list[str], changes: dict[int, str]
) -> None:
    mangled = [changes.get(index, cell) for index, cell in enumerate(row)]
    try:
        read = parse_runs(as_text(HEADER, mangled), where="f")
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    for run in read:
        made = setup_of(run, incomplete=True)
        if isinstance(made, Skipped):
            assert made.reason
        else:
            assert made.layout.chips_used == made.cluster.chips
            assert made.step_seconds > 0
            assert made.workload.batch_sequences >= 1


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse_runs(text, where="f")
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017
