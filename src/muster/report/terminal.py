"""The terminal that all reports print on: 100 columns at most, coloured only on a terminal."""

import os
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 100
GOOD, BAD, WARN, QUIET, TITLE = "green", "bold red", "yellow", "dim", "bold"


def console() -> Console:
    """A console on standard output."""
    plain = not sys.stdout.isatty()
    width = Console().width if not plain else int(os.environ.get("COLUMNS", MAX_WIDTH))
    return Console(width=min(width, MAX_WIDTH), highlight=False, soft_wrap=False, emoji=False)


def facts_table() -> Table:
    """A borderless table of label, value, remark."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(min_width=17, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=QUIET, ratio=1)
    return table


def title(text: str, remark: str = "") -> Text:
    """A section's heading."""
    heading = Text(text, style=TITLE)
    return heading.append(f"  {remark}", style=QUIET) if remark else heading


def bar(share: float, width: int = 30) -> str:
    """A bar of `share` of `width` cells; more than all of it ends in an arrow.

    >>> bar(0.5, 4), bar(2, 4)
    ('██  ', '███>')
    """
    if share > 1:
        return "█" * (width - 1) + ">"
    eighths = round(share * width * 8)
    full, part = divmod(eighths, 8)
    cells = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return cells.ljust(width)
