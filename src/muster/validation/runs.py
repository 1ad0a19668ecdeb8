"""Measured runs from a CSV file: one row a published measurement, every cell checked.

A file that cannot be a table of runs is refused (`BadInput`). A row with a cell that cannot be what
its column says is kept, with the problem named, and later skipped: one odd row of a large file must
not hide the others. Columns that only check a prediction's ground (`_ONLY_CHECKS`) read as blank.
"""

import csv
import io
import math
import stat
from dataclasses import dataclass, field, fields
from pathlib import Path

from muster.errors import BadInput, shorten

RUNS_FILE = Path(__file__).parent / "data" / "runs.csv"
MAX_FILE_BYTES = 64 * 1024**2
MAX_NUMBER = 1e15
_TRUE, _FALSE = {"true", "yes", "y", "1"}, {"false", "no", "n", "0"}
_CAN_BE_ZERO = {"n_experts", "experts_per_token"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row, with the column names of the file; None where a number is blank.

    Attributes:
        line: line of the file that the row begins at.
        problems: cells that are not what their column says; a run with any cannot be used.
    """

    id: str
    hardware: str
    model: str
    source: str = ""
    source_group: str = ""
    n_chips: int | None = None
    n_slices_or_nodes: int | None = None
    topology: str = ""
    n_layers: int | None = None
    d_model: int | None = None
    d_ff: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    tied_embeddings: bool | None = None
    n_experts: int | None = None
    experts_per_token: int | None = None
    gated_mlp: bool | None = None
    params_billion: float | None = None
    seq_len: int | None = None
    global_batch_sequences: int | None = None
    per_device_batch: float | None = None
    grad_accum: int | None = None
    dp: int | None = None
    fsdp: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    ep: int | None = None
    virtual_pp: int | None = None
    remat_policy: str = ""
    weight_dtype: str = ""
    compute_dtype: str = ""
    optimizer: str = ""
    attention_kernel: str = ""
    measured_step_seconds: float | None = None
    measured_tokens_per_s_per_chip: float | None = None
    measured_tflops_per_chip: float | None = None
    measured_mfu_percent: float | None = None
    mfu_convention: str = ""
    measured_memory_gb: float | None = None
    complete: bool | None = None
    notes: str = ""
    date: str = ""
    peak_tflops_used: float | None = None
    params_billion_recomputed: float | None = None
    active_params_billion: float | None = None
    gflop_per_token_6N: float | None = None
    gflop_per_token_causal: float | None = None
    gflop_per_token_noncausal: float | None = None
    tokens_per_s_per_chip_recomputed: float | None = None
    matched_convention: str = ""
    check_flags: str = ""
    line: int = 0
    problems: tuple[str, ...] = field(default=(), compare=False)


_KINDS = {each.name: each.type for each in fields(Run) if each.name not in {"line", "problems"}}
_ONLY_CHECKS = {
    "measured_mfu_percent",
    "measured_memory_gb",
    "peak_tflops_used",
    "params_billion",
    "params_billion_recomputed",
    "active_params_billion",
    "gflop_per_token_6N",
    "gflop_per_token_causal",
    "gflop_per_token_noncausal",
}
REQUIRED_COLUMNS = (
    "id",
    "hardware",
    "n_chips",
    "model",
    "n_layers",
    "d_model",
    "d_ff",
    "n_heads",
    "seq_len",
    "global_batch_sequences",
    "dp",
    "fsdp",
    "tp",
    "pp",
)
MEASURED_COLUMNS = (
    "measured_step_seconds",
    "measured_tokens_per_s_per_chip",
    "measured_tflops_per_chip",
    "tokens_per_s_per_chip_recomputed",
)


def load_runs(path: Path | None = None) -> tuple[Run, ...]:
    """Read measured runs.

    Args:
        path: a CSV file with the columns of the project's own; None for that one.

    Raises:
        BadInput: the file cannot be read, is no CSV table with a header, or lacks a column.
    """
    file = path or RUNS_FILE
    where = str(path) if path else RUNS_FILE.name
    if not where.strip() or where == ".":
        raise BadInput("--runs names no file; write it like --runs runs.csv")
    named = shorten(where)
    try:
        # A pipe could wait for ever, and a device never end.
        if not stat.S_ISREG(file.stat().st_mode):
            raise BadInput(f"cannot read {named}: it is no regular file; name a CSV file")
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot read {named}: {reason or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"{named} is larger than {MAX_FILE_BYTES // 1024**2} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{named} is not UTF-8 text (byte {error.start})") from None
    return parse_runs(text, where=where)


def parse_runs(text: str, *, where: str) -> tuple[Run, ...]:
    """Parse the text of a CSV file of runs; `where` names it in messages."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=False)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, where)
        runs = []
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                runs.append(_run(header, cells, line))
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{shorten(where)} line {reader.line_num}: not CSV: {error}") from None
    if not runs:
        raise BadInput(f"{shorten(where)} has a header and no rows")
    return tuple(runs)


def _check_header(header: list[str], where: str) -> None:
    if not header:
        raise BadInput(
            f"{shorten(where)} is empty; it needs a header with {', '.join(REQUIRED_COLUMNS)}"
        )
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise BadInput(f"{shorten(where)} line 1: no column {', '.join(missing)}")
    twice = sorted({name for name in header if name in _KINDS and header.count(name) > 1})
    if twice:
        raise BadInput(f"{shorten(where)} line 1: column {', '.join(twice)} stands twice")
    if not any(name in header for name in MEASURED_COLUMNS):
        raise BadInput(
            f"{shorten(where)} line 1: no measurement; add one of {', '.join(MEASURED_COLUMNS)}"
        )


def _run(header: list[str], cells: list[str], line: int) -> Run:
    problems: list[str] = []
    if len(cells) != len(header):
        problems.append(f"line {line}: {len(cells)} cells under {len(header)} columns")
    values: dict[str, object] = {}
    for name, cell in zip(header, cells, strict=False):
        if name not in _KINDS:
            continue
        try:
            values[name] = _value(name, cell.strip())
        except ValueError as error:
            if name not in _ONLY_CHECKS:
                problems.append(f"line {line}, column {name}: {error}")
    for name in ("id", "hardware", "model"):
        values.setdefault(name, "")
    values["id"] = values["id"] or f"line-{line}"
    return Run(**values, line=line, problems=tuple(problems))  # type: ignore[arg-type]


def _value(name: str, cell: str) -> object:
    kind = _KINDS[name]
    if kind is str:
        return " ".join(cell.split())
    if not cell:
        return None
    if kind == (bool | None):
        return _flag(cell)
    number = _number(cell)
    if number == 0 and name not in _CAN_BE_ZERO:
        raise ValueError("is zero")
    if kind == (float | None):
        return number
    if number != int(number):
        raise ValueError(f"{shorten(cell)} is not a whole number")
    return int(number)


def _flag(cell: str) -> bool:
    if cell.lower() in _TRUE:
        return True
    if cell.lower() in _FALSE:
        return False
    raise ValueError(f"{shorten(cell)} is neither true nor false")


def _number(cell: str) -> float:
    try:
        number = float(cell.replace(",", ""))
    except ValueError:
        raise ValueError(f"{shorten(cell)} is not a number") from None
    if not math.isfinite(number) or number > MAX_NUMBER or number < 0:
        raise ValueError(f"{shorten(cell)} is not a number that can be")
    return number
