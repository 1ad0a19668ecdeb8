"""What the tables of data/efficiencies.toml state of their own errors, and what is so now.

    fit, held_back                  bf16 and fp16 set-ups of a chip (and its kin) or a software
    narrow_fit, narrow_held_back    those of a chip with 8-bit and 4-bit matmuls

A software's errors are of the set-ups that ran under just that name; XLA's are of those on TPUs,
since nothing of its table was fitted on GPUs.
"""

import statistics
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from muster.roofline.efficiency import DATA, with_own_rates
from muster.validation.predict import software_of
from muster.validation.score import GroupScore, hardware_of, is_half_precision

type Statements = dict[str, dict[str, str]]

HALVES = ("fit", "held back")


def stated_errors(data: Mapping[str, Any] | None = None) -> Statements:
    """The errors that the file states, by table."""
    data = data or tomllib.loads(DATA.read_text(encoding="utf-8"))
    tables = {
        f"{kind}.{name}": table for kind in ("software", "chip") for name, table in _own(data[kind])
    }
    return {
        name: {key: value for key, value in table.items() if key.endswith(("fit", "held_back"))}
        for name, table in tables.items()
    }


def present_errors(groups: Iterable[GroupScore], kin: Mapping[str, str]) -> Statements:
    """The errors that the present model gives, by table.

    Args:
        groups: every scored set-up.
        kin: chips whose constants are another chip's.
    """
    parts: dict[str, dict[str, list[GroupScore]]] = {}
    for each in groups:
        prefix = "" if is_half_precision(each) else "narrow_"
        chip = hardware_of(each)
        software = software_of(each.setup).name
        tables = [] if software in with_own_rates() else [f"chip.{kin.get(chip, chip)}"]
        if not prefix and (software != "xla" or each.setup.cluster.chip.kind == "tpu"):
            tables.append(f"software.{software}")
        for table in tables:
            parts.setdefault(table, {}).setdefault(prefix, []).append(each)
    return {
        table: {
            f"{prefix}{half.replace(' ', '_')}": sentence(of_half(chosen, half))
            for prefix, chosen in by_prefix.items()
            for half in HALVES
        }
        for table, by_prefix in parts.items()
    }


def of_half(groups: Iterable[GroupScore], half: str) -> list[float]:
    """Absolute errors of the groups of one half."""
    return [abs(each.error) for each in groups if each.group.half == half]


def sentence(errors: list[float]) -> str:
    """Errors in words.

    >>> sentence([0.01, 0.03])
    '2 groups, median 2.0 %, mean 2.0 %'
    """
    if not errors:
        return "none"
    middle, mean = statistics.median(errors), statistics.fmean(errors)
    noun = "group" if len(errors) == 1 else "groups"
    return f"{len(errors)} {noun}, median {100 * middle:.1f} %, mean {100 * mean:.1f} %"


def _own(tables: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((name, table) for name, table in tables.items() if "fit" in table)
