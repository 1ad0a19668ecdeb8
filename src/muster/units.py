"""Read and print the quantities of the field: FLOPs, bytes, seconds, tokens, counts.

Two meanings of "M" are in use and both are kept: a batch of `4M` tokens is 4 x 1024 x 1024 (people
choose powers of two), a corpus of `15T` tokens is 15e12. The caller says which it reads.
"""

import math
import re
from dataclasses import dataclass

from muster.errors import BadInput, shorten

GIB = 1024**3
SECONDS_PER_DAY = 86_400.0
SECONDS_PER_YEAR = 365.0 * SECONDS_PER_DAY

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "b": 2**30, "t": 2**40, "p": 2**50}
_NUMBER = re.compile(
    r"(?P<number>\d+(?:_\d{3})*(?:\.\d*)?|\d{1,3}(?:,\d{3})+|\.\d+)(?P<exponent>e[+-]?\d{1,3})?"
    r"\s*(?P<prefix>[kmgbtp]?)(?P<binary>i?)(?P<unit>(?:\s*(?:tokens?|tok|seqs?|sequences?))?)",
    re.IGNORECASE | re.ASCII,
)
_EXACT_DIGITS = 1_000
MOST = 10**18


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """A global batch as the user wrote it: exactly one of the two is set."""

    tokens: int | None = None
    sequences: int | None = None


def parse_count(text: str, what: str, *, binary: bool = False) -> int:
    """Read a positive whole number with an optional suffix.

    Args:
        text: `15T`, `4M`, `4Mi`, `4194304`, `4_194_304`, `1e12`, `0.5B`.
        what: what the number is, for the error message.
        binary: whether K, M, G, T mean powers of 1024 (a batch) or of 1000 (a corpus).

    Raises:
        BadInput: not a number, not whole, zero or negative.

    >>> parse_count("15T", "tokens"), parse_count("4M", "batch", binary=True)
    (15000000000000, 4194304)
    """
    number, unit = _parse(text, what, binary=binary)
    if unit:
        raise BadInput(f"{what} takes a plain number, not {shorten(text)}")
    return number


def parse_batch(text: str) -> BatchSize:
    """Read a global batch: tokens (`4M` is 4 x 1024 x 1024) or whole sequences (`1024seq`).

    >>> parse_batch("4M"), parse_batch("1024seq")
    (BatchSize(tokens=4194304, sequences=None), BatchSize(tokens=None, sequences=1024))
    """
    number, unit = _parse(text, "batch", binary=True)
    if unit.startswith("seq"):
        return BatchSize(sequences=number)
    return BatchSize(tokens=number)


def _parse(text: str, what: str, *, binary: bool) -> tuple[int, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        example = "4M, 4194304 or 1024seq" if binary else "15T, 15e12 or 4096"
        raise BadInput(f"{what} {shorten(text)} is not a positive number; write it like {example}")
    prefix = match["prefix"].lower()
    if match["binary"] and not prefix:
        raise BadInput(f"{what} {shorten(text)} has an 'i' without a prefix; write 4Mi or 4M")
    scale = (_BINARY if binary or match["binary"] else _DECIMAL)[prefix]
    number = _scaled(match["number"].replace("_", "").replace(",", ""), match["exponent"], scale)
    if number is None:
        raise BadInput(f"{what} {shorten(text)} is not a whole number")
    if number == 0:
        raise BadInput(f"{what} must be at least 1, not {shorten(text)}")
    if number > MOST:
        raise BadInput(f"{what} {shorten(text)} is beyond all use; the largest is 1e18")
    return number, match["unit"].strip().lower()


def _scaled(digits: str, exponent: str | None, scale: int) -> int | None:
    """Multiply out exactly (no floats); None where the result is not whole or absurdly long."""
    whole, _, fraction = digits.partition(".")
    power = int(exponent[1:]) if exponent else 0
    if len(digits) + abs(power) > _EXACT_DIGITS:
        return None
    numerator = int((whole or "0") + fraction) * scale * 10 ** max(power, 0)
    denominator = 10 ** (len(fraction) + max(-power, 0))
    quotient, remainder = divmod(numerator, denominator)
    return None if remainder else quotient


def format_si(value: float, unit: str = "", *, digits: int = 3) -> str:
    """Print with a decimal prefix and `digits` significant figures.

    >>> format_si(70_553_706_496), format_si(4.59e14, "FLOP/s"), format_si(0)
    ('70.6 B', '459 TFLOP/s', '0')
    """
    prefixes = ["", "k", "M", "G" if unit else "B", "T", "P", "E", "Z", "Y"]
    number, prefix = _scale_down(value, 1000.0, prefixes, digits)
    return f"{number} {prefix}{unit}".rstrip()


def format_flops(value: float) -> str:
    """Print FLOPs in powers of ten past what prefixes say well.

    >>> format_flops(6.35e24), format_flops(4.23e11)
    ('6.35e24 FLOPs', '423 GFLOPs')
    """
    if value >= 1e18:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)} FLOPs"
    return format_si(value, "FLOPs")


def format_bytes(value: float, *, digits: int = 3) -> str:
    """Print bytes in decimal units, as vendors and the book do (1 GB = 1e9 B).

    >>> format_bytes(140e9), format_bytes(512)
    ('140 GB', '512 B')
    """
    number, prefix = _scale_down(value, 1000.0, ["", "k", "M", "G", "T", "P", "E"], digits)
    return f"{number} {prefix}B"


def format_seconds(value: float) -> str:
    """Print a duration in the unit that a person would pick.

    >>> format_seconds(0.00092), format_seconds(0.532), format_seconds(3.8e6)
    ('920 us', '532 ms', '44.0 days')
    """
    years = 3 * SECONDS_PER_YEAR
    for limit, scale, unit in (
        (1e-3, 1e6, "us"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
        (2 * SECONDS_PER_DAY, 1 / 3600, "h"),
        (years, 1 / SECONDS_PER_DAY, "days"),
    ):
        if _rounded(value * scale, 3) < limit * scale:
            return f"{_significant(value * scale, 3)} {unit}"
    return f"{_significant(value / SECONDS_PER_YEAR, 3)} years"


def format_count(value: int) -> str:
    """Print an exact integer with thousands separated.

    >>> format_count(70553706496)
    '70,553,706,496'
    """
    return f"{value:,}"


def _scale_down(value: float, base: float, prefixes: list[str], digits: int) -> tuple[str, str]:
    index = 0
    scaled = float(value)
    while (
        index < len(prefixes) - 1 and float(_significant(scaled, digits).replace(",", "")) >= base
    ):
        scaled /= base
        index += 1
    return _significant(scaled, digits), prefixes[index]


def _rounded(value: float, digits: int) -> float:
    if value == 0:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def _significant(value: float, digits: int) -> str:
    rounded = _rounded(value, digits)
    if rounded == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"
