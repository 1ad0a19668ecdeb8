"""The page with the tables: one for each stack of versions, and what they come to."""

import csv
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from muster.hardware import parse_cluster
from muster.roofline.host_link import host_bandwidth
from muster.validation.runs import RUNS_FILE
from published.flags import CONTINUATION_FUSION, SPARSE_CORES
from published.reading import Read
from published.rows import ROWS
from published.stacks import STACKS, Stack, nearest

# Of a section, by the ids of rows: a line that begins with it, such as "| maxtext-012 | ...".
type Lines = Mapping[str, str]
NOTHING: Lines = MappingProxyType({})
HEADING = "## By the compiler of "
VERSIONS = "Versions: "
WITHIN = 10  # percent
_ERROR = re.compile(r"\| ([+-][\d.]+)% \|$")


def table(rows: Sequence[Read], kept: Lines = NOTHING) -> Iterator[str]:
    """The lines of a table, in Markdown; those of `kept` for rows that have no program here."""
    yield (
        "| row | hardware | model | published s | cycles alone ms | as scheduled ms | kernels ms "
        "| exposed communication ms | other waits ms | predicted s | error |"
    )
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for each in rows:
        row = each.row
        begin = f"| {row.id} | {row.hardware} | {row.model} | {row.step:.3f} |"
        if each.compiled.path is None:
            yield kept.get(row.id, f"{begin} not read | | | | | | |")
            continue
        parts = (each.guessed, each.compute, each.kernels, each.exposed, each.other)
        told = " | ".join(f"{1e3 * part:.0f}" for part in parts)
        yield f"{begin} {told} | {each.step:.3f} | {each.error:+.1f}% |"


PAGE = """# Published steps, read from MaxText's own programs

Made by `benchmarks/published_programs.py` on {date}; do not edit.

A published step was compiled by the compiler of its day; today's writes another program of the same
recipe. So each is compiled again by three, and each program is read as `muster inspect` reads it.
Where they disagree the compilers do, and all are shown.

Error of the step, by the month of the compiler; the nearest is that of the one that was nearest
to the run, of those that compiled it:

{summary}

{sections}

## What is compared

Rows: of `runs.csv` all that are complete, for v5e, v5p or v6e, of a dense model on one slice; for
each hardware and model the newest, and of several of one day the one on the most chips. That rule
was written down before any of them was read; the two rules below, and the mesh of maxtext-046, came
after first readings of these rows were up to 62 % off and their causes had been looked for; the
earlier compilers came last, when by today's alone 8 of 11 rows were within 10 %. So the errors tell
how well these runs are understood now, more than what to expect of the next one. The programs are
MaxText's and are not in this repository.

Published: seconds of one step where the source gives them; of `maxtext-...` rows, which give
TFLOP/s, the tokens of a step over the rate that the row's way of counting FLOPs implies (of 042,
044 and 046 attention is taken to be counted causally, which their source does not say; counted in
full their steps are 0.8 to 1.6 % longer).
Cycles alone: the sum of what the compiler guessed (`estimated_cycles`), over the clock.
As scheduled: the same with matmuls, and what only moves numbers, held to what their schedules take.
Kernels, exposed communication, other waits (copies to and from the host or VMEM, operations
without an estimate): from shapes, links and bandwidths. All are estimates; nothing ran.

No package reaches back to 2023 and 2024: for those runs even the nearest compiler is 7 to 19 months
younger. What `muster verify` and `muster tune` compile with is the libtpu that is installed; the
programs of verified-plans.md and tuned-plans.md are by libtpu 0.0.50.1, none of these three.

Settings are the recipe's, but for what a row says; whatever it leaves open has MaxText's defaults.
Two rules hold for all rows that they meet:

- The layers of the runs of 2023 (`maxtext-...`) had attention and MLP side by side on one norm, now
  the decoder block "default"; LLaMA's came to MaxText in January 2024 (its pull request 309).
- Where a compiler refuses `{fusion}`, by which recipes
  have gathers run beside matmuls ("not supported/recommended on platforms other than TPU v5e",
  today's says), the SparseCores run them instead:

{instead}

What readings of these rows have taught: matmuls of 8-bit integers are held to their own peak (001);
attention with a window is timed by the blocks of its kernels' grids (039); what only moves numbers
is held to its bytes (026, 030); kernels are known by the names that older JAX gives them.

Rows 017 and 026 keep every layer's input, Q, K, V and attention's output in the host's memory, 30
GB each way in a step of 026. The compiler of the month before run 026 lets those copies run through
the whole layer, and nothing waits. Those of later months want some of them done early in the layer:
that waits, at the {host} that a chip has to its host. They also fetch whole stacks
back to lay them out anew (2026), or first write them full of zeros (2025-09; of row 030 these do
not fit). A program that offloads should be looked at with the compiler that it will run with.

To make a table again, in an environment of its own:

{make}

## Sources

{sources}
"""
MAKE = """    pip install {packages}
    uv run --extra train python benchmarks/published_programs.py FOLDER \\
        --by {name} --maxtext ENV/bin/python --write docs/published-programs.md"""


def page(read: Mapping[Stack, Sequence[Read]], before: str = "") -> str:
    """The page, in Markdown.

    Args:
        read: rows, by the stacks that were read.
        before: an earlier page, which holds for stacks and programs that are not here.
    """
    sections = {stack: _section(stack, read.get(stack, ()), before) for stack in STACKS}
    return PAGE.format(
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        summary="\n".join(_summary(sections)),
        sections="\n\n".join(sections.values()),
        fusion=CONTINUATION_FUSION,
        instead="\n".join(f"      {flag}" for flag in SPARSE_CORES),
        host=f"{host_bandwidth(parse_cluster('v6e-256').chip) / 1e9:.0f} GB/s",
        make="\n\n".join(
            MAKE.format(name=stack.name, packages=" ".join(stack.packages)) for stack in STACKS
        ),
        sources="\n".join(f"- {row.id}: {row.source}." for row in ROWS),
    )


def _summary(sections: Mapping[Stack, str]) -> Iterator[str]:
    """Every row's error by every stack, with what they come to."""
    lines = {stack: _beginning(section, "| ", " | ") for stack, section in sections.items()}
    days = _days()
    columns: dict[str, list[float | None]] = {stack.name: [] for stack in STACKS}
    columns["nearest"] = []
    for row in ROWS:
        errors = {stack: _error(lines[stack].get(row.id, "")) for stack in STACKS}
        for stack, error in errors.items():
            columns[stack.name].append(error)
        tried = [stack for stack, error in errors.items() if error is not None]
        columns["nearest"].append(errors[nearest(days[row.id], tried)] if tried else None)
    yield "| row | run | " + " | ".join(columns) + " |"
    yield "|---|---|" + "--:|" * len(columns)
    for number, row in enumerate(ROWS):
        told = (_percent(column[number]) for column in columns.values())
        yield f"| {row.id} | {days[row.id]:%Y-%m} | " + " | ".join(told) + " |"
    known = [[each for each in column if each is not None] for column in columns.values()]
    within = (f"{sum(abs(each) <= WITHIN for each in each)} of {len(each)}" for each in known)
    yield f"| within {WITHIN} % | | " + " | ".join(within) + " |"
    means = (_mean(each) for each in known)
    yield "| mean of absolute errors | | " + " | ".join(means) + " |"


def _mean(errors: Sequence[float]) -> str:
    return f"{sum(map(abs, errors)) / len(errors):.1f}%" if errors else ""


def _percent(error: float | None) -> str:
    return "not read" if error is None else f"{error:+.1f}%"


def _error(line: str) -> float | None:
    """The error at the end of a row's line, in percent; None where it was not read."""
    found = _ERROR.search(line)
    return float(found.group(1)) if found else None


def _days() -> dict[str, datetime.date]:
    """When the runs were published; the first of a month where no day is told."""
    with RUNS_FILE.open(newline="") as file:
        told = {run["id"]: run["date"] for run in csv.DictReader(file)}
    return {row.id: datetime.date.fromisoformat(f"{told[row.id]}-01"[:10]) for row in ROWS}


def _section(stack: Stack, rows: Sequence[Read], before: str) -> str:
    """A stack's table, what it says all in all, and what its compiler said of rows."""
    known = {each.row.id: each for each in rows}
    rows = [known.get(row.id) or Read.missing(row) for row in ROWS]
    old = _section_of(stack, before)
    said = _beginning(old, "- ", ":")
    notes = [said.get(each.row.id, "") if each.unknown else _note(each) for each in rows]
    versions = {key: value for each in rows for key, value in each.compiled.versions.items()}
    told = ", ".join(f"{key} {value}" for key, value in versions.items())
    kept = next((line for line in old.splitlines() if line.startswith(VERSIONS)), VERSIONS)
    return "\n".join(
        [
            f"{HEADING}{stack.name}\n",
            f"{VERSIONS}{told}." if told else kept,
            "",
            *table(rows, _beginning(old, "| ", " | ")),
            "",
            *filter(None, notes),
        ]
    ).strip()


def _section_of(stack: Stack, page: str) -> str:
    """What an earlier page has of a stack."""
    _, _, after = page.partition(f"{HEADING}{stack.name}\n")
    return after.partition("\n## ")[0]


def _beginning(section: str, mark: str, end: str) -> Lines:
    """Lines that begin with a mark and a row's id, by ids."""
    lines = (line for line in section.splitlines() if line.startswith(mark))
    return {line.removeprefix(mark).partition(end)[0]: line for line in lines}


def _note(each: Read) -> str:
    """What the compiler said of a row's flags or of itself; "" where it said nothing."""
    refused = ", ".join(f"`{flag}`" for flag in each.compiled.refused)
    said = [f"flags refused: {refused}"] if refused else []
    said += ["SparseCores in their place"] if each.compiled.instead else []
    said += [f"not read: {each.compiled.error.rstrip('.')}"] if each.compiled.error else []
    return f"- {each.row.id}: {'; '.join(said)}." if said else ""
