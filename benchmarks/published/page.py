"""The page with the table."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from published.flags import CONTINUATION_FUSION, SPARSE_CORES
from published.reading import Read

# Of a page, by the ids of rows: a line that begins with it, such as "| maxtext-012 | ...".
type Lines = Mapping[str, str]


def readings(before: str) -> Lines:
    """The lines of the table on an earlier page whose programs were read."""
    lines = (line for line in before.splitlines() if line.endswith("% |"))
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines}


def table(rows: Sequence[Read], kept: Lines = MappingProxyType({})) -> Iterator[str]:
    """The lines of the table, in Markdown; those of `kept` for rows that have no program here."""
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

Made by `benchmarks/published_programs.py` on {date}; do not edit. {versions}.

{table}

{summary}

To make it again, with `pip install maxtext==0.2.5` in an environment of its own:

    uv run --extra train python benchmarks/published_programs.py FOLDER \\
        --maxtext ENV/bin/python --write docs/published-programs.md

Rows: of `runs.csv` all that are complete, for v5e, v5p or v6e, of a dense model on one slice; for
each hardware and model the newest, and of several of one day the one on the most chips. That rule
was written down before any of them was read; the two rules below, and the mesh of maxtext-046, came
after first readings of these rows were up to 62 % off and their causes had been looked for. So the
errors tell how well these runs are understood now, more than what to expect of the next one. The
programs are MaxText's and are not in this repository.

Published: seconds of one step where the source gives them; of `maxtext-...` rows, which give
TFLOP/s, the tokens of a step over the rate that the row's way of counting FLOPs implies.
Cycles alone: the sum of what the compiler guessed (`estimated_cycles`), over the clock.
As scheduled: the same with matmuls and copies held to what their schedules take.
Kernels, exposed communication, other waits (copies to and from the host or VMEM, operations
without an estimate): from shapes, links and bandwidths. All are estimates; nothing ran.

These runs were compiled by MaxText and compilers of their day, these programs by the versions
above: where the two chose other layouts, another offload or another overlap, the error holds that
too. Settings are the recipe's, but for what a row says below; whatever it leaves open has the
defaults of MaxText 0.2.5. Two rules hold for all rows that they meet:

- The layers of the runs of 2023 (`maxtext-...`) had attention and MLP side by side on one norm, now
  the decoder block "default"; LLaMA's came to MaxText in January 2024 (its pull request 309).
- Where this compiler refuses `{fusion}`, by which recipes
  have gathers run beside matmuls ("not supported/recommended on platforms other than TPU v5e", it
  says), the SparseCores run them instead:

{instead}

Rows 001, 005, 026 and 039 came last, after the two rules. 001 was first read 20 % slow; matmuls of
8-bit integers are since held to their own peak, as those of bf16 are. 005 is as it was first read.
039 was first read 49 % slow; attention with a window is since timed by the blocks of its kernels'
grids, not by the whole causal square. 026 moves 94 GB a step between the
device and the host's memory: of its waits 1.1 s are whole stacks of activations that this compiler
fetches back, lays out anew and returns, the others what it waits for as the layers run. The
published run shows neither. How far such steps hide their traffic to the host no reading here can
tell yet.

## Rows

{rows}
"""


def page(rows: Sequence[Read], before: str = "") -> str:
    """The page, in Markdown.

    Args:
        rows: all of them.
        before: an earlier page, which holds for rows whose programs are not here.
    """
    kept = readings(before)
    lines = list(table(rows, kept))
    errors = [
        float(line.split(" | ")[-1].removesuffix("% |"))
        for line in readings("\n".join(lines)).values()
    ]
    versions = {key: value for each in rows for key, value in each.compiled.versions.items()}
    told = {line.split(":")[0]: line for line in before.splitlines() if line.startswith("- ")}
    within = sum(abs(error) <= 10 for error in errors)
    summary = (
        f"{within} of {len(rows)} rows are within 10 %; {len(rows) - len(errors)} were not read."
    )
    return PAGE.format(
        date=datetime.datetime.now(tz=datetime.UTC).date(),
        versions=", ".join(f"{key} {value}" for key, value in versions.items()),
        table="\n".join(lines),
        summary=summary,
        fusion=CONTINUATION_FUSION,
        instead="\n".join(f"      {flag}" for flag in SPARSE_CORES),
        rows="\n".join(
            told[f"- {each.row.id}"]
            if each.compiled.path is None and f"- {each.row.id}" in told
            else _told(each)
            for each in rows
        ),
    )


def _told(each: Read) -> str:
    """A row's source, and what the compiler said of its flags or of itself."""
    refused = ", ".join(f"`{flag}`" for flag in each.compiled.refused)
    said = [f"- {each.row.id}: {each.row.source or 'settings not found'}"]
    said += [f"flags refused: {refused}"] if refused else []
    said += ["SparseCores in their place"] if each.compiled.instead else []
    said += [f"not read: {each.compiled.error}"] if each.compiled.error else []
    return "; ".join(said) + "."
