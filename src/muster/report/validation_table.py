"""The terminal's view of `muster validate`."""

from collections import Counter
from collections.abc import Iterable

from rich.table import Table

from muster.report.terminal import QUIET, console, title
from muster.report.words import counted
from muster.validation.score import (
    ErrorLine,
    GroupScore,
    Scores,
    errors_by,
    errors_of,
    half_name,
    hardware_of,
    is_half_precision,
    parallelism_of,
    precision_of,
    source_of,
    worst_groups,
)

FAR_OFF = 0.40
MOST_WORST = 12
Section = tuple[str, tuple[ErrorLine, ...]]


def sections(scores: Scores) -> tuple[Section, ...]:
    """The error tables, in the order in which they are printed."""
    half = [each for each in scores.groups if is_half_precision(each)]
    every = errors_of("all groups", scores.groups)
    target = errors_of("bf16 and fp16", half)
    overall = tuple(line for line in (target, every) if line)
    return (
        ("Overall", overall),
        ("bf16 and fp16, by half", errors_by(half, half_name)),
        ("bf16 and fp16, by hardware", errors_by(half, hardware_of)),
        ("bf16 and fp16, by source", errors_by(half, source_of)),
        ("bf16 and fp16, by parallelism", errors_by(half, parallelism_of)),
        ("All, by number format", errors_by(scores.groups, precision_of)),
    )


def print_validation(scores: Scores) -> None:
    """Print the errors by kind, then the worst groups with their reasons."""
    out = console()
    rows = len(scores.rows)
    done = rows - len(scores.skipped)
    remark = f"{counted(rows, 'row')}, {done} predicted, {counted(len(scores.groups), 'set-up')}"
    out.print(title("Validation", remark))
    if scores.groups:
        out.print(errors_table(sections(scores), "absolute error of the step time"))
        out.print()
        out.print(title("Farthest off", "with the likely reason"))
        out.print(_worst_table(_shown(scores.groups)))
    if scores.skipped:
        out.print()
        out.print(title("Not predicted", counted(len(scores.skipped), "row")))
        out.print(skipped_table(row.skipped or "" for row in scores.skipped))


def _shown(groups: Iterable[GroupScore]) -> tuple[GroupScore, ...]:
    """The worst groups: a dozen, and any other that is far off."""
    ranked = worst_groups(groups)
    far = sum(abs(each.error) > FAR_OFF for each in ranked)
    return ranked[: max(MOST_WORST, far)]


def _cells(line: ErrorLine) -> tuple[str, ...]:
    return (
        line.name,
        str(line.groups),
        str(line.rows),
        f"{line.median:.1%}",
        f"{line.mean:.1%}",
        f"{line.bias:+.1%}",
        f"{line.worst:+.0%}",
    )


def errors_table(parts: Iterable[Section], heading: str) -> Table:
    """Errors, one line a part of the set-ups."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column(heading, min_width=20, max_width=40)
    for name in ("set-ups", "rows", "median", "mean", "bias", "worst"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, lines in parts:
        table.add_row(title(name))
        for line in lines:
            first, *others = _cells(line)
            table.add_row(f"  {first}", *others)
    return table


def _worst_table(groups: Iterable[GroupScore]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("error", justify="right", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("first row", no_wrap=True)
    table.add_column("set-up", overflow="fold", max_width=30)
    table.add_column("likely reason", style=QUIET, overflow="fold", ratio=1)
    for each in groups:
        setup = each.setup
        what = f"{setup.run.model} on {setup.cluster.name}, {parallelism_of(each)}"
        table.add_row(
            f"{each.error:+.0%}",
            f"{each.group.measured_seconds:.4g} s",
            setup.id,
            what,
            each.reason,
        )
    return table


def skipped_table(reasons: Iterable[str]) -> Table:
    """Reasons with how many rows, the most frequent first."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for reason, count in Counter(reasons).most_common():
        table.add_row(str(count), reason)
    return table
