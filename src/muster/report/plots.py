"""Line plots as percentages of a box: what templates/plan.html draws without any script.

Lines are an SVG stretched over the box (`preserveAspectRatio="none"`, strokes that do not scale);
ticks, dots and labels are text of the page's own size placed over it. So a plot is as wide as the
screen and its letters are never too small, on a phone as on a wall.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from muster.units import format_seconds, format_si

type Points = Sequence[tuple[float, float]]

FULL = 100.0
FEW = 120.0


@dataclass(frozen=True, kw_only=True)
class Axis:
    """From values to percent of the box; `ticks` are values with what is written beside them."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]
    name: str

    def place(self, value: float) -> float:
        """Percent of the box, 0 at `low`."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(FULL * share, 2)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve, in the colour and dashes of its style class."""

    name: str
    style: str
    points: Points
    dots: bool = False
    titles: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line with a label at its top."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A dot, in percent from the left and from the bottom; `title` is shown on hovering."""

    x: float
    y: float
    style: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure of lines.

    Attributes:
        alt: what a listener hears instead.
        columns, rows: the same numbers as a table.
        findings: what to see in it, in sentences.
    """

    id: str
    title: str
    remark: str
    alt: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    circles: tuple[Dot, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    findings: tuple[str, ...] = ()

    def path(self, line: Line) -> str:
        """The line as an SVG path, y downward, cut off at the box."""
        steps = [
            f"{self.x.place(x):g} {FULL - self.y.place(y):g}" for x, y in self._inside(line.points)
        ]
        return "M" + "L".join(steps) if steps else ""

    def dots(self, line: Line) -> list[Dot]:
        """A dot on each of the line's points."""
        titles = line.titles or ("",) * len(line.points)
        return [
            Dot(x=self.x.place(x), y=self.y.place(y), style=line.style, title=title)
            for (x, y), title in zip(line.points, titles, strict=True)
            if line.dots
        ]

    def _inside(self, points: Points) -> Points:
        return [(x, y) for x, y in points if y > 0 or not self.y.log]


def log_axis(
    name: str, values: Iterable[float], label: Callable[[float], str], *, base: int, most: int = 6
) -> Axis:
    """A logarithmic axis over the values, with ticks at powers of `base`.

    Where those are few and the base is ten, 2 and 5 times them are ticks as well.
    """
    positive = [value for value in values if value > 0]
    low, high = min(positive), max(positive)
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    stride = max(1, math.ceil((last - first) / most))
    between = (1, 2, 5) if base == 10 and high / low <= FEW else (1,)
    ticks = [
        times * float(base) ** power
        for power in range(first - 1, last + 1)
        if power % stride == 0
        for times in between
    ]
    pad = (high / low) ** 0.05 if high > low else 2.0
    low, high = low / pad, high * pad
    shown = [tick for tick in ticks if low <= tick <= high]
    return Axis(
        name=name,
        low=low,
        high=high,
        log=True,
        ticks=tuple((value, label(value)) for value in shown),
    )


def value_axis(name: str, values: Sequence[float], label: Callable[[float], str]) -> Axis:
    """Ticks at the values themselves, on a logarithmic axis: for few points, such as a sweep's."""
    low, high = min(values), max(values)
    pad = (high / low) ** 0.05 if high > low else 2.0
    return Axis(
        name=name,
        low=low / pad,
        high=high * pad,
        log=True,
        ticks=tuple((value, label(value)) for value in values),
    )


def linear_axis(name: str, most: float, label: Callable[[float], str], *, low: float = 0.0) -> Axis:
    """A linear axis from `low` to a round number past `most`."""
    step = nice_step(most - low)
    count = math.ceil((most - low) / step - 1e-9) or 1
    ticks = tuple((low + step * k, label(low + step * k)) for k in range(count + 1))
    return Axis(name=name, low=low, high=low + step * count, log=False, ticks=ticks)


def nice_step(span: float, pieces: int = 4) -> float:
    """A step of 1, 2, 2.5 or 5 times a power of ten, so that a few of them are the span.

    >>> nice_step(0.69), nice_step(36_000_000)
    (0.2, 10000000.0)
    """
    if span <= 0:
        return 1.0
    raw = span / pieces
    power = 10.0 ** math.floor(math.log10(raw))
    return next(round(n * power, 12) for n in (1, 2, 2.5, 5, 10) if n * power >= raw - 1e-12)


def short_seconds(value: float) -> str:
    """A tick's seconds, without the digits that a power of ten does not need.

    >>> short_seconds(1e-4), short_seconds(10.0), short_seconds(1e-3), short_seconds(2000.0)
    ('100 us', '10 s', '1 ms', '2,000 s')
    """
    if value >= 1.0:
        return f"{value:,.0f} s"
    number, _, unit = format_seconds(value).partition(" ")
    return f"{float(number.replace(',', '')):g} {unit}"


def short_si(value: float) -> str:
    """A tick's count without needless digits.

    >>> short_si(80e6), short_si(2.5e6), short_si(0)
    ('80 M', '2.5 M', '0')
    """
    number, space, prefix = format_si(value).partition(" ")
    return f"{float(number.replace(',', '')):g}{space}{prefix}"


def short_tokens(value: float) -> str:
    """Tokens of a batch as people say them, in powers of 1024.

    >>> short_tokens(4194304), short_tokens(16384), short_tokens(500), short_tokens(786432)
    ('4M', '16k', '500', '768k')
    """
    scale: int
    suffix: Literal["G", "M", "k"]
    for scale, suffix in ((1024**3, "G"), (1024**2, "M"), (1024, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{suffix}"
    return f"{value:.3g}"


def short_chips(value: float) -> str:
    """Chips as an axis has room for.

    >>> short_chips(8192), short_chips(65536), short_chips(1048576)
    ('8,192', '65,536', '1,048,576')
    """
    return f"{value:,.0f}"
