"""Fit the constants of roofline/data/efficiencies.toml on published runs, and rewrite the file.

    uv run --group fit python scripts/fit_efficiencies.py     fit; rewrite values and errors (1 min)
    uv run python scripts/fit_efficiencies.py --errors        rewrite the stated errors alone
    uv run python scripts/fit_efficiencies.py --check         exit 1 where they are stale (2 s)

Rows of one set-up are averaged, and only set-ups of the half called "fit" are looked at
(validation/groups.py). What is least: the sum over set-ups of a soft-L1 loss, scale 0.06, of
log(predicted / measured), and over the constants, by the same loss, of

    weight x (constant - prior) / spread

so that a constant on which few runs bear stays near what is usual. Three parts, one after the
other, because they share no constants that are free: XLA on TPUs; everything else on GPUs; then,
with those held, the rate of 8-bit and 4-bit matmuls. TPU generations share one ICI and one DCN
share; B200 and GB200 share all of theirs, as shares of the best measured matmul, but for SimuMax's
runs, whose rates are their own. DeepSpeed's ZeRO-3, six rows on a network that it alone saturates,
is a part by itself.

Constants that are not named in PARTS are taken, and stand in the file with the reason.
"""

import argparse
import copy
import math
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.roofline.efficiency import DATA, Efficiency, best_matmul_share, read_efficiency
from muster.roofline.step_time import StepModel
from muster.validation.fitted import Statements, present_errors, stated_errors
from muster.validation.groups import Group
from muster.validation.predict import cluster_of, kernel_of, policy_of, predict_setup, software_of
from muster.validation.runs import load_runs
from muster.validation.score import HALF_PRECISION, Scores, score_runs
from muster.validation.setup import Setup

SCALE = 0.06  # errors much larger than this count linearly, not squared
MOST_EVALUATIONS = 25
STEP = 1e-2  # of finite differences, in shares of a constant's range

TPUS = ("v4", "v5e", "v5p", "v6e", "v7x")
GPUS = ("a100", "h100", "gb200")


@dataclass(frozen=True)
class Range:
    """Where a constant can lie: bounds, where the fit begins, and its prior with its spread."""

    low: float
    high: float
    start: float
    prior: float
    spread: float


RANGES = {
    "matmul": Range(0.3, 1.0, 0.8, 0.78, 0.08),
    "matmul_narrow": Range(0.2, 1.0, 0.6, 0.55, 0.12),
    "attention": Range(0.1, 1.0, 0.5, 0.55, 0.12),
    "flash_attn": Range(0.1, 1.0, 0.33, 0.35, 0.1),
    "elementwise": Range(0.15, 4.0, 0.6, 0.8, 0.25),
    "near": Range(0.3, 1.0, 0.8, 0.8, 0.08),
    "far": Range(0.03, 1.0, 0.7, 0.7, 0.15),
    "hide_weights": Range(0.0, 1.0, 0.4, 0.7, 0.25),
    "hide_tensor": Range(0.0, 1.0, 0.4, 0.4, 0.25),
    "hide_gradients": Range(0.0, 1.0, 0.4, 0.5, 0.3),
    "hide_sequence": Range(0.0, 1.0, 0.5, 0.5, 0.3),
    "jitter": Range(0.0, 0.06, 0.005, 0.01, 0.01),
    "kernel_seconds": Range(0.0, 3e-5, 7e-6, 5e-6, 3e-6),
}
# Ranges of single constants that differ: compilers fuse; TPUs reach more of their peak.
OWN_RANGES = {
    **{f"chip.{chip}.matmul": Range(0.3, 1.0, 0.8, 0.88, 0.08) for chip in TPUS},
    "software.xla.elementwise": Range(0.15, 4.0, 0.5, 1.0, 0.6),
    "software.xla.hide_tensor": Range(0.0, 1.0, 0.5, 0.4, 0.25),
    "software.xla.jitter": Range(0.0, 0.06, 0.015, 0.01, 0.01),
    "chip.h100.flash_attn": Range(0.1, 1.0, 0.19, 0.35, 0.1),
    "chip.a100.megatron-deepspeed.far": Range(0.03, 1.0, 0.3, 0.7, 0.15),
    "chip.a100.deepspeed.far": Range(0.03, 1.0, 0.09, 0.7, 0.15),
}


@dataclass(frozen=True)
class Part:
    """Constants that are fitted together.

    Attributes:
        name: for the log.
        takes: whether a set-up takes part.
        free: the constants, as the file nests them.
        weight: how strongly the priors draw.
        tied: constants that follow a free one.
    """

    name: str
    takes: Callable[[Setup], bool]
    free: tuple[str, ...]
    weight: float
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)


def _half_precision(setup: Setup) -> bool:
    return setup.formats.compute in HALF_PRECISION


def _zero_3(setup: Setup) -> bool:
    return software_of(setup).name == "deepspeed"


def _names(tables: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{table}.{key}" for table in tables for key in keys)


PARTS = (
    Part(
        "XLA on TPUs",
        lambda s: _half_precision(s) and s.software == "xla" and s.cluster.chip.kind == "tpu",
        (
            *_names([f"chip.{chip}" for chip in TPUS], ("matmul", "attention")),
            *_names(
                ["software.xla"],
                ("elementwise", "hide_weights", "hide_tensor", "hide_gradients", "jitter"),
            ),
            "chip.v4.near",
            "chip.v4.far",
        ),
        weight=0.02,
        tied={
            f"chip.v4.{key}": tuple(f"chip.{chip}.{key}" for chip in TPUS[1:])
            for key in ("near", "far")
        },
    ),
    Part(
        "GPUs",
        lambda s: (
            _half_precision(s)
            and s.software != "xla"
            and s.cluster.chip.kind == "gpu"
            and not _zero_3(s)
        ),
        (
            "chip.a100.megatron-deepspeed.far",
            *_names([f"chip.{chip}" for chip in GPUS], ("matmul",)),
            *_names([f"chip.{chip}" for chip in GPUS[1:]], ("attention",)),
            "chip.gb200.simumax.matmul",
            "chip.gb200.simumax.attention",
            *_names(["chip.a100", "chip.h100"], ("flash_attn",)),
            *_names(
                ["software.megatron"],
                ("elementwise", "hide_tensor", "hide_gradients", "jitter", "kernel_seconds"),
            ),
            "common.hide_sequence",
            *_names(
                ["software.torch"], ("elementwise", "hide_weights", "jitter", "kernel_seconds")
            ),
            *_names(["software.compiled"], ("elementwise", "hide_weights", "hide_tensor")),
        ),
        weight=0.04,
    ),
    Part(
        "ZeRO-3 of 2021",
        lambda s: _half_precision(s) and _zero_3(s),
        ("chip.a100.deepspeed.far",),
        weight=0.04,
    ),
    Part(
        "8-bit and 4-bit matmuls",
        lambda s: not _half_precision(s),
        _names(
            [f"chip.{chip}" for chip in ("h100", "gb200", "v5p", "v6e", "v7x")],
            ("matmul_narrow",),
        ),
        weight=0.03,
    ),
)


def main() -> int:
    """Fit, rewrite or check; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="fail where a stated error is stale")
    choice.add_argument("--errors", action="store_true", help="rewrite the stated errors only")
    options = parser.parse_args()
    text = DATA.read_text(encoding="utf-8")
    if options.check:
        return check(tomllib.loads(text))
    if not options.errors:
        text = with_values(text, fit_all(tomllib.loads(text)))
    tables = tomllib.loads(text)
    text = with_statements(text, present_errors(scores_with(tables).groups, tables["kin"]))
    DATA.write_text(text, encoding="utf-8")
    return 0


def check(tables: dict[str, Any]) -> int:
    """Compare the errors that the file states with those of the present model and rows."""
    stated, present = (
        stated_errors(tables),
        present_errors(scores_with(tables).groups, tables["kin"]),
    )
    stale = [table for table, errors in present.items() if stated.get(table) != errors]
    for table in stale:
        print(f"[{table}] states {stated.get(table)}, is {present[table]}", file=sys.stderr)
    if stale:
        print("run scripts/fit_efficiencies.py, with --errors if the model stands", file=sys.stderr)
    return 1 if stale else 0


def scores_with(tables: dict[str, Any]) -> Scores:
    """Scores of every row with the constants of given tables."""

    def predict(setup: Setup) -> float:
        chip, software = setup.cluster.chip.id, software_of(setup).name
        return predict_with(setup, read_efficiency(tables, chip, software))

    return score_runs(load_runs(), predict)


def predict_with(setup: Setup, fitted: Efficiency) -> float:
    """Predicted seconds of a set-up's step with given constants."""
    model = StepModel(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        attention=kernel_of(setup),
        software=software_of(setup),
        fitted=fitted,
    )
    return model.step(setup.layout, policy_of(setup)).total


def fit_all(tables: dict[str, Any]) -> dict[str, float]:
    """Fit every part on its half of the set-ups; the constants by their dotted names."""
    groups = [each.group for each in score_runs(load_runs(), predict_setup).groups]
    seen = [group for group in groups if group.half == "fit"]
    fitted = {name: range_of(name).start for part in PARTS for name in part.free}
    fitted |= {
        name: fitted[first] for part in PARTS for first in part.tied for name in part.tied[first]
    }
    for part in PARTS:
        begun = time.monotonic()
        chosen = [group for group in seen if part.takes(group.setups[0])]
        fitted |= fit_part(part, chosen, with_constants(tables, fitted))
        taken = time.monotonic() - begun
        print(f"{part.name}: {len(chosen)} set-ups, {len(part.free)} constants, {taken:.0f} s")
        for name in part.free:
            print(f"    {name:36s} {number(fitted[name])}")
    return fitted


def fit_part(part: Part, groups: Sequence[Group], tables: dict[str, Any]) -> dict[str, float]:
    """The constants of one part that bring its set-ups nearest."""
    from scipy.optimize import least_squares

    ranges = [range_of(name) for name in part.free]

    def constants(shares: Iterable[float]) -> dict[str, float]:
        values = {
            name: round(float(each.low + share * (each.high - each.low)), 7)
            for name, each, share in zip(part.free, ranges, shares, strict=True)
        }
        for first, others in part.tied.items():
            values |= dict.fromkeys(others, values[first])
        return values

    def residuals(shares: Iterable[float]) -> list[float]:
        values = constants(shares)
        tried = with_constants(tables, values)
        kept = [
            part.weight * (values[name] - each.prior) / each.spread
            for name, each in zip(part.free, ranges, strict=True)
        ]
        return [*(log_error(group, tried) for group in groups), *kept]

    start = [(each.start - each.low) / (each.high - each.low) for each in ranges]
    found = least_squares(
        residuals,
        [min(0.99, max(0.01, share)) for share in start],
        bounds=(0, 1),
        loss="soft_l1",
        f_scale=SCALE,
        diff_step=STEP,
        max_nfev=MOST_EVALUATIONS,
    )
    return constants(found.x)


def log_error(group: Group, tables: dict[str, Any]) -> float:
    """log(predicted / measured) of a set-up."""
    setup = group.setups[0]
    fitted = read_efficiency(tables, setup.cluster.chip.id, software_of(setup).name)
    return math.log(predict_with(setup, fitted) / group.measured_seconds)


def range_of(name: str) -> Range:
    """The range of a constant by its dotted name; a matmul's ends at the best that was measured."""
    chosen = OWN_RANGES.get(name) or RANGES[name.rsplit(".", 1)[1]]
    best = best_matmul_share(name.split(".")[1]) if name.endswith(".matmul") else None
    if best is None or best >= chosen.high:
        return chosen
    return replace(chosen, high=best, start=min(chosen.start, 0.9 * best))


def with_constants(tables: dict[str, Any], values: dict[str, float]) -> dict[str, Any]:
    """The tables with other constants."""
    tables = copy.deepcopy(tables)
    for name, value in values.items():
        *path, key = name.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[key] = value
    return tables


def with_values(text: str, values: dict[str, float]) -> str:
    """The file's text with other constants, each rounded to three digits."""
    for name, value in values.items():
        table, key = name.rsplit(".", 1)
        text = _with_line(text, table, key, number(value))
    return text


def with_statements(text: str, statements: Statements) -> str:
    """The file's text with other stated errors."""
    for table, errors in statements.items():
        for key, words in errors.items():
            text = _with_line(text, table, key, f'"{words}"')
    return text


def _with_line(text: str, table: str, key: str, value: str) -> str:
    """The text with one line of one table replaced; the line must be there."""
    pattern = rf"(^\[{re.escape(table)}\]\n(?:(?!\[).*\n)*?{key} = ).*$"
    text, count = re.subn(
        pattern, lambda match: match[1] + value, text, count=1, flags=re.MULTILINE
    )
    if not count:
        sys.exit(f"{DATA.name} has no line {key!r} in [{table}]")
    return text


def number(value: float) -> str:
    """A constant as the file writes it.

    >>> number(0.81678), number(6.5e-06)
    ('0.817', '6.50e-06')
    """
    return f"{value:.2e}" if 0 < value < 1e-3 else f"{round(value, 3):g}"


if __name__ == "__main__":
    sys.exit(main())
