"""MaxText's step of a row, compiled in MaxText's own Python."""

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from published.flags import REFUSED, instead_of, name_of, taken
from published.settings import COMMON, Row
from published.stacks import Stack

QUIET = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
CHILD = Path(__file__).with_name("child.py")
NOT_COMPILED = "not compiled yet"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiling process left behind.

    Attributes:
        path: of the program's text; None where it did not compile.
        refused: flags that this compiler does not take.
        instead: flags that stood in their place.
        error: last words of a compilation that failed.
        seconds: it took.
        versions: of maxtext, jax and libtpu.
        places: x, y, z, core, slice of each device in the mesh's order.
    """

    path: Path | None
    refused: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    error: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    places: tuple[tuple[int, ...], ...] = ()


def compile_row(row: Row, stack: Stack, programs: Path, maxtext: Path | None) -> Compiled:
    """Compile a row, or find what an earlier run left.

    Args:
        row: what to compile.
        stack: the versions.
        programs: where they are kept, those of each stack in its own folder.
        maxtext: the Python that has them; None compiles nothing.
    """
    folder = programs / stack.name
    text, told = folder / f"{row.id}.hlo.txt.gz", folder / f"{row.id}.json"
    if not told.is_file():
        if maxtext is None:
            return Compiled(path=None, error=NOT_COMPILED)
        folder.mkdir(parents=True, exist_ok=True)
        told.write_text(json.dumps(_compile(row, stack, text, maxtext), indent=1))
    facts = json.loads(told.read_text())
    return Compiled(
        path=text if text.is_file() else None,
        refused=tuple(facts["refused"]),
        instead=tuple(facts.get("instead", ())),
        error=facts.get("error", ""),
        seconds=facts["seconds"],
        versions=facts.get("versions", {}),
        places=tuple(tuple(place) for place in facts.get("places", ())),
    )


def _compile(row: Row, stack: Stack, text: Path, maxtext: Path) -> dict[str, Any]:
    settings = COMMON | {"compile_topology": row.topology} | dict(row.settings)
    known = text.with_name(f"refused-{row.hardware.partition('-')[0].partition(':')[0]}.json")
    left = text.with_suffix(".told")
    left.unlink(missing_ok=True)
    began = time.perf_counter()
    while True:
        refused = json.loads(known.read_text()) if known.is_file() else {}
        flags = " ".join(f"--{flag}" for flag in taken(row.flags, refused))
        run = subprocess.run(
            [
                *(str(maxtext), "-P", str(CHILD), stack.train_compile, str(text), str(left)),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            env=os.environ | QUIET | {"LIBTPU_INIT_ARGS": flags},
            capture_output=True,
            text=True,
            check=False,
        )
        said = REFUSED.search(run.stdout + run.stderr)
        if left.is_file() or said is None:
            break
        unknown, not_here = said.groups()
        if (unknown or not_here) in refused:
            break
        known.write_text(json.dumps(refused | {unknown or not_here: "" if unknown else "false"}))
    dropped = [flag for flag in row.flags if name_of(flag) in refused]
    facts: dict[str, Any] = {
        "refused": dropped,
        "instead": instead_of(row.flags, refused),
        "seconds": time.perf_counter() - began,
    }
    if left.is_file():
        return {**facts, **json.loads(left.read_text())}
    return facts | {"error": _last_words(run.stdout + run.stderr)}


def _last_words(text: str) -> str:
    """What a failed compilation died of, without where in whose files."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return errors[-1][:400].rpartition(" HLO module")[0] or errors[-1][:400] if errors else "died"
