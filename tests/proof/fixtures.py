"""The compiled programs that tests read."""

import gzip
import json
from functools import cache
from typing import Any

from muster.proof.hlo import Program, parse
from tests.proof.keep import PROGRAMS

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


def kernels_of(name: str) -> Program:
    """One that holds kernels alone; the name says which JAX wrote it."""
    return program_of(f"kernels/{name}")
