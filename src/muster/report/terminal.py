"""The terminal that all reports print on: 100 columns at most, coloured only on a terminal."""

import io
import os
import re
import sys
from typing import IO, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.report.words import GLUE, glued

MAX_WIDTH = 100
MIN_WIDTH = 60
ROOM_FOR_BARS = 80
GOOD, BAD, WARN, QUIET, TITLE = "green", "bold red", "yellow", "dim", "bold"
_TRAILING = re.compile(r"[ ]+$", re.MULTILINE)


class _Plain(io.TextIOBase):
    """Standard output, with spaces for what glued words together, and none at the ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()

    def write(self, text: str) -> int:
        self._stream.write(_TRAILING.sub("", text.replace(GLUE, " ")))
        return len(text)


def console() -> Console:
    """A console on standard output; markup in names and paths is shown, never obeyed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(
        file=cast("IO[str]", _Plain(sys.stdout)),
        width=width(),
        highlight=False,
        soft_wrap=False,
        emoji=False,
        markup=False,
    )


def width() -> int:
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


class Grid(Table):
    """A borderless table whose cells keep numbers and their units on one line."""

    def __init__(self, *, header: bool = False, gap: int = 2) -> None:
        """Make it without columns; `gap` is of spaces between them."""
        super().__init__(
            box=None,
            show_header=header,
            padding=(0, gap, 0, 0),
            pad_edge=False,
            header_style=QUIET,
        )

    def add_cells(self, *cells: str | Text, style: str | None = None) -> None:
        """Add a row."""
        self.add_row(*map(keep_together, cells), style=style)


def keep_together(cell: str | Text) -> str | Text:
    """A cell whose lines never end between a number and its unit."""
    if isinstance(cell, str):
        return glued(cell)
    cell.plain = glued(cell.plain)
    return cell


def facts_table() -> Grid:
    """A borderless table of label, value, remark."""
    table = Grid()
    table.add_column(min_width=17, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=QUIET, ratio=1)
    return table


def title(text: str, remark: str = "") -> Text:
    """A section's heading."""
    heading = Text(text, style=TITLE)
    return heading.append(f"  {glued(remark)}", style=QUIET) if remark else heading


def bar_width() -> int:
    """Cells of a bar beside a label, a number and a remark."""
    return 24 if width() >= ROOM_FOR_BARS else 10


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
