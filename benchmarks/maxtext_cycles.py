"""MaxText's own training step on LLaMA-3 set-ups: what the TPU compiler makes of it.

    uv run python benchmarks/maxtext_cycles.py FOLDER --maxtext ENV/bin/python
        [--only NAME ...] [--write benchmarks/maxtext_cycles.toml]

Compiles every try of TRIES with MaxText's `train_compile`, in a process of its own and for the real
topology (no TPU is needed), keeps its facts and program in FOLDER, and reads it as `muster inspect`
does. What is there already is not compiled again; rows of the file whose programs are no longer
there stay as they are. ENV has maxtext==0.2.5; what muster's own plans were compiled with is libtpu
0.0.50.1. Flags that the compiler refuses are dropped and told.
"""

import argparse
import datetime
import gzip
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from maxtext_tries import SETUPS, TRIES, Try
from published.flags import REFUSED

CHILD = "--child"
QUIET = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
PATIENCE = 20 * 60  # seconds for one compilation


def compile_try(each: Try, folder: Path, maxtext: Path | None) -> dict[str, Any] | None:
    """The facts of a try: of this compilation, or of an earlier one."""
    told = folder / f"{each.name}.json"
    if not told.is_file():
        if maxtext is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        facts = _compile(each, folder, maxtext)
        told.write_text(json.dumps(facts, indent=1))
    facts = json.loads(told.read_text())
    assert isinstance(facts, dict)
    return facts


def _compile(each: Try, folder: Path, maxtext: Path) -> dict[str, Any]:
    text, left = program_of(each, folder), folder / "told"
    left.unlink(missing_ok=True)
    known = folder / f"refused-{SETUPS[each.setup].hardware.partition(':')[0]}.json"
    began = time.perf_counter()
    while True:
        # Names of flags that are not known, or that are to be false on this chip.
        refused: dict[str, str] = json.loads(known.read_text()) if known.is_file() else {}
        flags = list(_taken(each, refused))
        try:
            run = subprocess.run(
                [str(maxtext), __file__, CHILD, str(text), str(left), *each.arguments()],
                env=os.environ | QUIET | {"LIBTPU_INIT_ARGS": " ".join(f"--{f}" for f in flags)},
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            said = run.stdout + run.stderr
        except subprocess.TimeoutExpired:
            said = f"TimeoutError: not compiled in {PATIENCE // 60} minutes"
        found = REFUSED.search(said)
        if left.is_file() or found is None or (found[1] or found[2]) in refused:
            break
        refused[found[1] or found[2]] = "" if found[1] else "false"
        known.write_text(json.dumps(refused))
    facts: dict[str, Any] = {
        "flags": flags,
        "refused": [flag for flag in each.options() if flag not in flags],
        "seconds": round(time.perf_counter() - began),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }
    if left.is_file():
        return {**facts, "status": "compiled", **json.loads(left.read_text())}
    (folder / f"{each.name}.log").write_text(said)
    return facts | {"status": reason(said)}


def _taken(each: Try, refused: Mapping[str, str]) -> Iterator[str]:
    """The flags of a try that the compiler takes, as it takes them."""
    for flag in each.options():
        name, _, value = flag.partition("=")
        if (value := refused.get(name, value)) != "":
            yield f"{name}={value}"


def reason(text: str) -> str:
    """What a failed compilation died of, in a line."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    last = errors[-1] if errors else "died"
    return re.sub(r"^[\w.]*Error: ", "", last)[:200].partition(". HLO module")[0]


def program_of(each: Try, folder: Path) -> Path:
    """Where a try's program is kept."""
    return folder / f"{each.name}.hlo.txt.gz"


def child(arguments: Sequence[str]) -> None:
    """In MaxText's Python: compile one step and keep the text of its program."""
    from importlib.metadata import version

    text, left, *settings = arguments
    train_compile = import_module("maxtext.trainers.pre_train.train_compile")
    topologies = import_module("maxtext.utils.accelerator_to_spec_map")
    maps = [
        each for each in vars(topologies).values() if isinstance(each, dict) and "v5p-8" in each
    ]
    for known in maps:  # MaxText's table has every v5p slice up to 8960 chips but this
        like = known["v5p-8192"]
        shape = {"topology_name": "v5:16x16x32", "devices_per_slice": 8192}
        known.setdefault("v5p-16384", type(like)(**(vars(like) | shape)))
    compiles = train_compile.jit_and_compile

    def and_keep(func: Any, args: Any, kwargs: Any, mesh: Any, *others: Any) -> NoReturn:
        compiled = compiles(func, args, kwargs, mesh, *others)
        with gzip.open(text, "wt") as file:
            file.write(compiled.as_text())
        memory = compiled.memory_analysis()
        temporaries = memory.temp_size_in_bytes
        total = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + temporaries
            + memory.generated_code_size_in_bytes
        )
        facts = {
            "versions": {name: version(name) for name in ("libtpu", "jax", "maxtext")},
            "places": [[*device.coords, device.core_on_chip, 0] for device in mesh.devices.flat],
            "temporaries": temporaries,
            "total": total,
        }
        Path(left).write_text(json.dumps(facts))
        sys.exit(0)  # what else it would tell of the program takes longer than to compile it

    vars(train_compile)["jit_and_compile"] = and_keep
    base = Path(import_module("maxtext").__file__ or "").parent / "configs" / "base.yml"
    train_compile.main(["train_compile", str(base), *settings])


def row_of(each: Try, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A row of the table: how it was compiled, and what `muster inspect` makes of it."""
    setup = SETUPS[each.setup]
    row: dict[str, Any] = {
        "model": setup.model,
        "hardware": setup.hardware,
        "sequences": setup.sequences,
        "ici": each.ici,
        "remat": each.remat,
        "settings": [f"{key}={value}" for key, value in each.settings.items()],
        "flags": facts["flags"],
        "refused": facts["refused"],
        "status": facts["status"],
    }
    if facts["status"] == "compiled":
        row |= _read(setup.hardware, facts, program_of(each, folder))
        row["temporaries_gb"] = round(facts["temporaries"] / 1e9, 1)
        row["total_gb"] = round(facts["total"] / 1e9, 1)
        row["usable_gb"] = _usable_gb(setup.hardware)
        row["versions"] = [f"{name} {number}" for name, number in facts["versions"].items()]
    return row | {"seconds": facts["seconds"], "date": facts["date"]}


def _read(hardware: str, facts: Mapping[str, Any], text: Path) -> dict[str, int]:
    from muster.hardware import parse_cluster
    from muster.proof.hlo import parse
    from muster.proof.reading import read_program
    from muster.proof.simulate import rates_of

    cluster = parse_cluster(hardware)
    reading = read_program(
        parse(gzip.decompress(text.read_bytes()).decode()),
        cluster,
        coordinates=tuple(tuple(place) for place in facts["places"]),
    )
    cycles = reading.cycles.compute / rates_of(cluster.chip).clock
    timeline = reading.timeline
    return {
        "cycles_ms": round(1e3 * cycles),
        "step_ms": round(1e3 * timeline.seconds),
        "exposed_ms": round(1e3 * timeline.exposed_communication),
    }


def _usable_gb(hardware: str) -> float:
    from muster.hardware import parse_cluster

    chip = parse_cluster(hardware).chip
    return round(chip.hbm_bytes / chip.devices_per_chip / 1e9, 1)


def _same_try(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    told = ("model", "hardware", "sequences", "ici", "remat", "settings", "flags", "refused")
    return all(row[key] == other[key] for key in told)


HEAD = """\
# MaxText 0.2.5's own training step, compiled ahead of time by the TPU compiler; nothing ran.
# Made by benchmarks/maxtext_cycles.py; do not edit. One row for each compilation that was tried.
# Sequences of 4096 tokens; bfloat16 compute, float32 parameters, gradients and Adam's moments
# (MaxText's defaults), splash attention, layers scanned; all else as MaxText's base.yml has it,
# but for the script's COMMON and a row's settings. MaxText's mesh is in `ici`.
# flags: those of MaxText's or Google's recipe for the generation, or muster's own, that the
# compiler took (none: the compiler's defaults); refused: those that it did not.
# cycles_ms: the compiler's estimates at the chip's clock, loops multiplied out, without kernels.
# step_ms and exposed_ms: what muster's walk through the schedule makes of the step and of
# communication that no work hides. Memory is of one device, in 10^9 bytes: temporaries; in total,
# with arguments, outputs and code, as muster's own tables count it; what a program may have. The
# compiler took each program that is "compiled", also where that total is above it.
# seconds: of compiling, on two cores that others used too.
"""


def toml(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The file's lines."""
    yield HEAD.rstrip()
    for row in rows:
        yield "\n[[row]]"
        for key, value in row.items():
            if isinstance(value, list) and len(value) > 2:
                yield f"{key} = ["
                yield from (f"  {json.dumps(each)}," for each in value)
                yield "]"
            else:
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}"


def main() -> None:
    """Compile, read, print."""
    if sys.argv[1:2] == [CHILD]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where programs are kept")
    parser.add_argument("--maxtext", type=Path, help="the Python that has MaxText; else none is")
    parser.add_argument("--only", nargs="*", help="names, or what they begin with")
    parser.add_argument("--write", type=Path, help="the file to write")
    asked = parser.parse_args()
    before = asked.write.read_text("utf-8") if asked.write and asked.write.is_file() else ""
    rows: list[dict[str, Any]] = list(tomllib.loads(before).get("row", []))
    for each in TRIES:
        if asked.only and not each.name.startswith(tuple(asked.only)):
            continue
        facts = compile_try(each, asked.folder, asked.maxtext)
        if facts is None:
            continue
        row = row_of(each, facts, asked.folder)
        rows = [*(other for other in rows if not _same_try(other, row)), row]
        shown = ("status", "cycles_ms", "step_ms", "exposed_ms", "total_gb", "seconds")
        print(each.name, *(f"{key} {row[key]}" for key in shown if key in row), flush=True)
        if asked.write:
            asked.write.write_text("\n".join(toml(rows)) + "\n", "utf-8")


if __name__ == "__main__":
    main()
