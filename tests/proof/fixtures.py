"""The compiled programs that tests read."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from muster.proof.hlo import Program, parse

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(path.name.removesuffix(".hlo.txt.gz") for path in PROGRAMS.glob("*.hlo.txt.gz"))


@cache
def text_of(name: str) -> str:
    return gzip.decompress((PROGRAMS / f"{name}.hlo.txt.gz").read_bytes()).decode()


@cache
def program_of(name: str) -> Program:
    return parse(text_of(name))


@cache
def facts_of(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((PROGRAMS / f"{name}.json").read_text("utf-8"))
    return facts
