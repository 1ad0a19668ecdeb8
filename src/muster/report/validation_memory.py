"""The terminal's view of `muster validate --memory`."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.report.columns import Column, shown
from muster.report.terminal import QUIET, Grid, console, title
from muster.report.validation_table import errors_table, skipped_table
from muster.report.words import counted
from muster.validation.memory import GB, GOAL, TERMS, MemoryScore, MemoryScores, RanScore
from muster.validation.overfull import overfull
from muster.validation.score import ErrorLine, errors_by, errors_of

MOST_WORST = 12
SHORT = {"gradients": "grads", "optimizer": "optim.", "activations": "activ.", "workspace": "work"}
RARELY_LARGE = (
    "workspace",
    "logits",
    "reserve",
    "gathered",
    "optimizer",
    "gradients",
    "params",
    "activations",
)


def print_memory(scores: MemoryScores) -> None:
    """Print the errors by source, the worst with their terms and reasons, and what must fit."""
    out = console()
    rows = sum(len(each.group.setups) for each in scores.groups)
    within = sum(abs(each.error) <= GOAL for each in scores.groups)
    setups = counted(len(scores.groups), "set-up")
    remark = f"published by {counted(rows, 'row')} of {setups}, {within} of them within {GOAL:.0%}"
    out.print(title("Memory", remark))
    if scores.groups:
        out.print(errors_table(_sections(scores.groups), "absolute error of the memory of a chip"))
        out.print()
        worst = sorted(scores.groups, key=lambda each: (-abs(each.error), each.group.id))
        out.print(title("Farthest off", "GB on the fullest chip, term by term"))
        out.print(_terms_table(worst[:MOST_WORST]))
        out.print()
        out.print(title("Likely reasons", f"of those off by more than {GOAL:.0%}"))
        out.print(_reasons_table(worst))
    if scores.ran:
        out.print()
        over = sum(each.filled > 1 for each in scores.ran)
        out.print(
            title(
                "Everything that ran must fit",
                f"{over} of {len(scores.ran)} set-ups are predicted not to",
            )
        )
        out.print(_ran_table(scores.ran))
        _print_overfull(scores.ran, out)
    if scores.skipped:
        out.print()
        out.print(title("Not predicted", f"{counted(len(scores.skipped), 'row')} that publish it"))
        out.print(skipped_table(row.reason for row in scores.skipped))


def _sections(groups: tuple[MemoryScore, ...]) -> tuple[tuple[str, tuple[ErrorLine, ...]], ...]:
    every = errors_of("all", groups)
    return (
        ("Overall", (every,) if every else ()),
        ("By source", errors_by(groups, _source)),
    )


def _source(score: MemoryScore | RanScore) -> str:
    return score.group.setups[0].run.source_group or "unnamed"


def _terms_table(groups: Iterable[MemoryScore]) -> Table:
    numbers = [Column(name) for name in ("error", "measured", "predicted")]
    first = Column("first row", left=True)
    # Of a narrow terminal the smallest terms go first.
    order = sorted(TERMS, key=RARELY_LARGE.index)
    terms = [Column(term, rank=order.index(term) + 1) for term in TERMS]
    rows = []
    for each in groups:
        left_out = {"reserve"} if each.measure == "allocated" else set()
        row: dict[str, str | Text] = {
            "error": f"{each.error:+.0%}",
            "measured": f"{each.measured_bytes / GB:.1f}",
            "predicted": f"{each.predicted_bytes / GB:.1f}",
            "first row": each.setup.id,
        }
        for term in TERMS:
            cell = _gb(getattr(each.memory, term), term in left_out)
            row[term] = Text(cell, style=QUIET)
        rows.append(row)
    return shown([*numbers, first, *terms], rows, headings=SHORT, gap=1)


def _gb(size: float, left_out: bool) -> str:
    return "" if left_out or size < 0.05 * GB else f"{size / GB:.1f}"


def _reasons_table(worst: Iterable[MemoryScore]) -> Table:
    by_reason: dict[str, list[str]] = {}
    for each in worst:
        if each.reason:
            by_reason.setdefault(each.reason, []).append(each.setup.id)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style=QUIET, overflow="fold")
    for reason, ids in by_reason.items():
        table.add_row(str(len(ids)), f"{ids[0]}{' ...' if len(ids) > 1 else ''}", reason)
    return table


def _print_overfull(ran: tuple[RanScore, ...], out: Console) -> None:
    """What of the memory of those that are predicted not to fit would have to be less."""
    parts = overfull(ran)
    if not parts:
        return
    out.print()
    out.print(title("Predicted not to fit", "by the first rule that frees all that is too much"))
    table = Grid()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style=QUIET, overflow="fold", ratio=1)
    for reason, those in parts.items():
        most = those[0]
        dots = " ..." if len(those) > 1 else ""
        first = f"{most.group.setups[0].id}{dots}"
        table.add_cells(str(len(those)), f"{most.filled:.0%}", first, reason)
    out.print(table)


def _ran_table(ran: Iterable[RanScore]) -> Table:
    parts: dict[str, list[RanScore]] = {}
    for each in ran:
        parts.setdefault(_source(each), []).append(each)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("predicted over usable memory", min_width=34)
    for name in ("set-ups", "not to fit", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which", no_wrap=True, style=QUIET)
    for source, part in sorted(parts.items(), key=lambda item: (-len(item[1]), item[0])):
        most = max(part, key=lambda each: each.filled)
        over = sum(each.filled > 1 for each in part)
        size, which = f"{most.filled:.0%}", most.group.setups[0].id
        table.add_row(f"  {source}", str(len(part)), str(over or ""), size, which)
    return table
