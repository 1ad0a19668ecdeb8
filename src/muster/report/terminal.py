"""The terminal that all reports print on: 100 columns at most, coloured only on a terminal."""

import io
import os
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 100
MIN_WIDTH = 60
GOOD, BAD, WARN, QUIET, TITLE = "green", "bold red", "yellow", "dim", "bold"


def console() -> Console:
    """A console on standard output; markup in names and paths is shown, never obeyed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(width=_width(), highlight=False, soft_wrap=False, emoji=False, markup=False)


def _width() -> int:
    """Columns: the terminal's, or COLUMNS, between what is still readable and 100."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and int(asked[:6]) > 0:
        columns = int(asked[:6])
    else:
        columns = Console().width if sys.stdout.isatty() else MAX_WIDTH
    return max(MIN_WIDTH, min(columns, MAX_WIDTH))


def _draws_blocks() -> bool:
    """Whether standard output can show block characters."""
    try:
        "█▏".encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


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
    if not _draws_blocks():
        return ("#" * (width - 1) + ">") if share > 1 else ("#" * round(share * width)).ljust(width)
    if share > 1:
        return "█" * (width - 1) + ">"
    eighths = round(share * width * 8)
    full, part = divmod(eighths, 8)
    cells = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return cells.ljust(width)
