"""Rewrite the generated parts of the documents by running the commands they show.

A fenced block that opens with ```console holds one or more commands, each on a line that starts
with `$ `; what follows a command is its output. This script runs every command and puts the output
that it prints today in its place, so that documents cannot drift from the tool.

    uv run python scripts/write_docs.py            rewrite
    uv run python scripts/write_docs.py --check    exit 1 and show the difference where one is stale
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/llama3-on-tpus.md", "docs/tune.md", "docs/validation.md")
WIDTH = "100"
BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Rewrite or check every document; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where stale")
    check = parser.parse_args().check
    stale = [name for name in DOCUMENTS if not refresh(ROOT / name, check=check)]
    for name in stale:
        print(f"{name} is stale; run `uv run python scripts/write_docs.py`", file=sys.stderr)
    return 1 if stale else 0


def refresh(document: Path, *, check: bool) -> bool:
    """Bring one document up to date; with `check` only say whether it is."""
    old = document.read_text("utf-8")
    new = BLOCK.sub(lambda match: f"```console\n{rerun(match['body'])}```", old)
    if old == new:
        return True
    if not check:
        document.write_text(new, "utf-8")
        return True
    sys.stderr.writelines(
        difflib.unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            str(document.relative_to(ROOT)),
            "as the tool prints it now",
        )
    )
    return False


def rerun(body: str) -> str:
    """Run the commands of a block again and lay out commands and outputs as before."""
    commands = [line for line in body.splitlines() if line.startswith("$ ")]
    return "\n".join(f"{command}\n{output_of(command[2:])}" for command in commands)


def output_of(command: str) -> str:
    """What a shell prints for a command, on a terminal of the documents' width without colour."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
        "COLUMNS": WIDTH,
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
