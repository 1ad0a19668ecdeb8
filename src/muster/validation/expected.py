"""How far off a prediction for a chip may be: what data/efficiencies.toml states, and who measured.

Predicting every run again would take longer than a plan does. The stated errors are those of the
present model, which a test holds (`validation.fitted`).
"""

import csv
import re
import tomllib
from dataclasses import dataclass
from functools import cache

from muster.roofline.efficiency import DATA, with_own_rates
from muster.validation.clusters import chip_id
from muster.validation.runs import RUNS_FILE

_SENTENCE = re.compile(r"(?P<groups>\d+) groups?, median [\d.]+ %, mean (?P<mean>[\d.]+) %")
HALVES = ("fit", "held_back")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of the error of predicted bf16 and fp16 steps on a chip.

    Attributes:
        chip: whose prediction it is.
        fitted: the chip whose efficiencies it takes: itself, or the nearest that was measured.
        setups: set-ups that were measured on `fitted` and its kin.
        held_back: those of them that no constant was fitted to.
        mean: of their absolute errors, 0.05 for 5 %; None where there are none.
        rows: complete rows on `chip` itself.
        sources: who measured those.
    """

    chip: str
    fitted: str
    setups: int
    held_back: int
    mean: float | None
    rows: int
    sources: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether any run on the chip itself was measured."""
        return self.rows > 0


def expected_error(chip: str) -> Expected:
    """The stated error of the chip's table, and how many rows are of the chip itself."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    fitted = data["kin"].get(chip, chip)
    table = data["chip"].get(fitted, {})
    parts = [found for half in HALVES if (found := read_sentence(table.get(half, "")))]
    setups = sum(groups for groups, _ in parts)
    mean = sum(groups * mean for groups, mean in parts) / setups if setups else None
    rows, sources = _measured().get(chip, (0, ()))
    apart = read_sentence(table.get("held_back", ""))
    return Expected(
        chip=chip,
        fitted=fitted,
        setups=setups,
        held_back=apart[0] if apart else 0,
        mean=mean,
        rows=rows,
        sources=sources,
    )


def read_sentence(text: str) -> tuple[int, float] | None:
    """Set-ups and mean error of a stated error; None where it states none.

    >>> read_sentence("8 groups, median 2.7 %, mean 4.7 %"), read_sentence("none")
    ((8, 0.047), None)
    """
    match = _SENTENCE.fullmatch(text)
    return (int(match["groups"]), round(float(match["mean"]) / 100, 6)) if match else None


@cache
def _measured() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Complete half-precision rows, and their sources, by chip.

    Sources whose program has rates of its own are left out; it is called as they are.
    """
    rows: dict[str, list[str]] = {}
    with RUNS_FILE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["source_group"] in with_own_rates():
                continue
            if row["complete"] == "yes" and row["compute_dtype"].lower().startswith(("bf", "fp16")):
                rows.setdefault(row["hardware"], []).append(row["source_group"])
    found: dict[str, list[str]] = {}
    for hardware, sources in rows.items():
        found.setdefault(chip_id(hardware) or hardware, []).extend(sources)
    return {chip: (len(each), tuple(sorted(set(each)))) for chip, each in found.items()}
