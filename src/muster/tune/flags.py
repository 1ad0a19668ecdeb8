"""The compiler's options that are worth trying on each generation of TPUs: data/flags.toml."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from muster.planner.plan_file import PlannedRun
from muster.tune.choices import Flag

DATA = Path(__file__).parent / "data" / "flags.toml"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One of the compiler's options.

    Attributes:
        values: to try, those that mostly gain more first.
        what: what it does, one line.
        chips: ids of the chips that it is for; empty for all TPUs.
        where: "several slices": traffic between slices alone; "host memory": activations that wait
            there alone; "always".
        source: who uses or documents it.
        needs: options that it does not work without.
    """

    name: str
    values: tuple[str, ...]
    what: str
    chips: tuple[str, ...]
    where: str
    source: str
    needs: Mapping[str, str]


@cache
def options() -> tuple[Option, ...]:
    """All of them, in the order to try them in."""
    held = tomllib.loads(DATA.read_text("utf-8"))
    return tuple(
        Option(
            name=name,
            values=tuple(entry["values"]),
            what=entry["what"],
            chips=tuple(entry.get("chips", ())),
            where=entry.get("where", "always"),
            source=entry["source"],
            needs=entry.get("needs", {}),
        )
        for name, entry in held.items()
    )


def flags_for(planned: PlannedRun) -> Iterator[Flag]:
    """Options with values that suit a plan and that it does not have already."""
    chip = planned.cluster.chip.id
    there = {
        "always": True,
        "several slices": planned.cluster.slices > 1,
        "host memory": planned.remat.value == "offload",
    }
    for option in options():
        if (option.chips and chip not in option.chips) or not there[option.where]:
            continue
        for value in option.values:
            if planned.compiler_options.get(option.name) != value:
                yield Flag(name=option.name, value=value, what=option.what, needs=option.needs)
