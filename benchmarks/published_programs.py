"""`muster inspect` on MaxText's own compiled steps, beside what is published for those set-ups.

    MAXTEXT=/path/to/env/bin/python     an environment of its own
    uv run --extra train python benchmarks/published_programs.py FOLDER --maxtext $MAXTEXT
        [--by 2026-11|2025-09|2025-06] [--only ROW ...] [--write docs/published-programs.md]

Compiles each row's step with MaxText's `train_compile`, in a process of its own, for the real
topology (no TPU is needed), keeps the scheduled HLO text in FOLDER, reads it and prints the table.
A text that is already there is read again, not compiled again; rows whose texts are no longer there
stay on the page as they are. `--by` says by the compiler of which month: see published/stacks.py.

Which rows: of `runs.csv` all that are complete, for v5e, v5p or v6e, of a dense model on one slice;
for each (hardware, model) the newest, and of several of one day the one on the most chips. Written
down before any of them was read. Settings and flags are those of the recipe that the row names.
"""

import argparse
import sys
from pathlib import Path

from published.compiling import compile_row
from published.page import page, table
from published.reading import read_row
from published.rows import ROWS
from published.stacks import STACKS, TODAY


def main() -> None:
    """Compile, read, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where programs are kept")
    parser.add_argument("--maxtext", type=Path, help="the Python that has MaxText; else none is")
    parser.add_argument("--by", choices=[each.name for each in STACKS], default=TODAY.name)
    parser.add_argument("--only", nargs="*", help="rows")
    parser.add_argument("--write", type=Path, help="the page to write")
    asked = parser.parse_args()
    stack = next(each for each in STACKS if each.name == asked.by)
    rows = []
    for row in ROWS:
        if asked.only and row.id not in asked.only:
            continue
        rows.append(read_row(row, compile_row(row, stack, asked.folder, asked.maxtext)))
        print(*list(table(rows[-1:]))[2:], sep="\n", file=sys.stderr, flush=True)
    print(*table(rows), sep="\n")
    if asked.write:
        before = asked.write.read_text("utf-8") if asked.write.is_file() else ""
        asked.write.write_text(page({stack: rows}, before), "utf-8")


if __name__ == "__main__":
    main()
