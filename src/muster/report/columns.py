"""Tables that leave out columns where the terminal is narrow: a number is whole or not there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from muster.report.terminal import Grid, width

GAP = 2
LEAST_FOLDED = 24  # columns of text below which words would stand one below the other


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: its heading, and the key of its cells.
        left: whether it is text.
        folds: whether its cells may be broken over lines.
        rank: which go first where there is no room, from 1; 0 for never.
    """

    name: str
    left: bool = False
    folds: bool = False
    rank: int = 0


def shown(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, str | Text]],
    *,
    headings: Mapping[str, str] | None = None,
    styles: Sequence[str | None] = (),
    gap: int = GAP,
) -> Grid:
    """The table with as many of the columns as the terminal has room for."""
    named = headings or {}
    kept = fitting(columns, rows, width(), named, gap)
    table = Grid(header=True, gap=gap)
    for column in kept:
        table.add_column(
            named.get(column.name, column.name),
            justify="left" if column.left else "right",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
            ratio=1 if column.folds else None,
        )
    for index, row in enumerate(rows):
        style = styles[index] if styles else None
        table.add_cells(*(row[column.name] for column in kept), style=style)
    return table


def fitting(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, str | Text]],
    room: int,
    headings: Mapping[str, str],
    gap: int = GAP,
) -> list[Column]:
    """The columns that there is room for."""
    kept = list(columns)
    dropped = sorted((each for each in columns if each.rank), key=lambda each: each.rank)
    while _needed(kept, rows, headings, gap) > room and dropped:
        kept.remove(dropped.pop(0))
    return kept


def _needed(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, str | Text]],
    headings: Mapping[str, str],
    gap: int,
) -> int:
    """Columns of the terminal that a table takes at the least."""
    total = 0
    for column in columns:
        texts = [headings.get(column.name, column.name), *(str(row[column.name]) for row in rows)]
        longest = max(cell_len(line) for text in texts for line in text.split("\n"))
        total += min(longest, LEAST_FOLDED) if column.folds else longest
    return total + gap * (len(columns) - 1)
