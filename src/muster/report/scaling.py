"""Curves of the HTML page from sweeps: strong scaling, cost, and utilization against the batch."""

from collections.abc import Callable, Iterator

from muster.planner.plan import Plan
from muster.planner.sweep import Sweep, SweepPoint
from muster.report.plots import (
    Line,
    Mark,
    Plot,
    linear_axis,
    log_axis,
    short_chips,
    short_seconds,
    short_si,
    short_tokens,
    value_axis,
)
from muster.report.sweep_table import short_days
from muster.report.words import SHORT_BOUNDS, counted, layout_text
from muster.units import format_seconds, format_si

FEWEST_POINTS = 2
# Of a run whose length was not given, what so many tokens take is shown.
TOKENS_SHOWN = 10**12
NOTHING = "-"


def scaling_plots(plan: Plan, chips: Sweep, batch: Sweep) -> tuple[Plot, ...]:
    """Every curve for which two points or more fit."""
    found: list[Plot] = []
    if len(_fitting(chips)) >= FEWEST_POINTS:
        found += [_steps_plot(chips), _mfu_plot(chips), *_cost_plot(plan, chips)]
    if len(_fitting(batch)) >= FEWEST_POINTS:
        found.append(_mfu_plot(batch))
    return tuple(found)


def sweep_rows(sweep: Sweep) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of a sweep's table, what does not fit included."""
    what = {"batch": "batch tokens", "chips": "chips", "seq": "sequence"}[sweep.what]
    columns = (what, "cluster", "step", "MFU", "bound", "days", "USD", "layout")
    return columns, tuple(_row(point) for point in sweep.points)


def _row(point: SweepPoint) -> tuple[str, ...]:
    head = (f"{point.value:,}", point.cluster.name)
    if point.choice is None or point.mfu is None:
        return (*head, *[NOTHING] * 5, f"does not fit: {point.why_not}")
    return (
        *head,
        format_seconds(point.choice.seconds),
        f"{point.mfu:.1%}",
        SHORT_BOUNDS[point.bound] if point.bound else NOTHING,
        NOTHING if point.days is None else short_days(point.days),
        NOTHING if point.cost_usd is None else format_si(point.cost_usd),
        f"{layout_text(point.choice.layout)}, remat {point.choice.remat.value}",
    )


def _fitting(sweep: Sweep) -> list[tuple[SweepPoint, float, float]]:
    """Points that fit, with their seconds and MFU."""
    return [
        (point, point.seconds, point.mfu)
        for point in sweep.points
        if point.seconds is not None and point.mfu is not None
    ]


def _marks(sweep: Sweep) -> tuple[Mark, ...]:
    given = sweep.given
    return (Mark(at=given.value, label="this plan"),) if given.choice else ()


def _title_of(point: SweepPoint) -> str:
    row = _row(point)
    return f"{point.cluster.name}: {row[2]}, MFU {row[3]}, {row[7]}"


def _steps_plot(sweep: Sweep) -> Plot:
    found = _fitting(sweep)
    points = [(float(p.value), seconds) for p, seconds, _ in found]
    anchor = next(((p.value, s) for p, s, _ in found if p.given), points[0])
    ideal = [(x, anchor[0] * anchor[1] / x) for x, _ in points]
    first, last = found[0], found[-1]
    gain = first[1] / last[1]
    ways = last[0].value / first[0].value
    columns, rows = sweep_rows(sweep)
    return Plot(
        id="scaling",
        title="Strong scaling",
        remark="the same batch on more chips, the best layout at each; dashed: chips x time equal",
        alt=(
            f"Step time against chips: {format_seconds(first[1])} on {first[0].value:,} chips, "
            f"{format_seconds(last[1])} on {last[0].value:,}"
        ),
        x=value_axis("chips", [x for x, _ in points], short_chips),
        y=log_axis("seconds a step", [y for _, y in points], short_seconds, base=10),
        lines=(
            Line(name="chips x time as this plan's", style="ideal", points=ideal),
            _dotted("predicted step", "s1", found, points),
        ),
        marks=_marks(sweep),
        columns=columns,
        rows=rows,
        findings=(
            f"{ways:,.0f} times the chips are {gain:,.1f} times as fast: "
            f"{gain / ways:.0%} of perfect scaling",
        ),
    )


def _mfu_plot(sweep: Sweep) -> Plot:
    found = _fitting(sweep)
    against = "chips" if sweep.what == "chips" else "the batch"
    label = short_chips if sweep.what == "chips" else short_tokens
    points = [(float(p.value), mfu) for p, _, mfu in found]
    best = max(found, key=lambda each: each[2])
    columns, rows = sweep_rows(sweep) if sweep.what != "chips" else ((), ())
    return Plot(
        id=f"mfu-{sweep.what}",
        title=f"MFU against {against}",
        remark=(
            "6N, predicted, of the chips used"
            if sweep.what == "chips"
            else "6N, predicted, on these chips"
        ),
        alt=f"MFU against {against}: " + ", ".join(f"{mfu:.0%} at {label(x)}" for x, mfu in points),
        x=value_axis(
            "chips" if sweep.what == "chips" else "tokens in the batch",
            [x for x, _ in points],
            label,
        ),
        y=linear_axis("MFU", max(y for _, y in points), lambda y: f"{y:.0%}"),
        lines=(_dotted("MFU (6N)", "s3", found, points),),
        marks=_marks(sweep),
        columns=columns,
        rows=rows,
        findings=(f"highest: {best[2]:.1%} at {_sized(sweep, best[0])}",),
    )


def _sized(sweep: Sweep, point: SweepPoint) -> str:
    if sweep.what == "chips":
        return counted(point.value, "chip")
    return f"{short_tokens(point.value)} tokens"


def _dotted(
    name: str,
    style: str,
    found: list[tuple[SweepPoint, float, float]],
    points: list[tuple[float, float]],
) -> Line:
    titles = tuple(_title_of(point) for point, _, _ in found)
    return Line(name=name, style=style, points=points, dots=True, titles=titles)


def _cost_plot(plan: Plan, sweep: Sweep) -> Iterator[Plot]:
    """What the run costs on more chips: dollars, or chip-hours where there is no price."""
    found = _fitting(sweep)
    price = plan.cluster.chip.price_usd_per_hour
    run = plan.workload.train_tokens
    tokens = run or TOKENS_SHOWN
    what = "the run" if run else f"{format_si(tokens)} tokens"
    days = {p.value: s * tokens / p.workload.batch_tokens / 86_400 for p, s, _ in found}
    hours = {p.value: days[p.value] * 24 * p.cluster.chips for p, _, _ in found}
    costs = {value: each * (price or 1.0) for value, each in hours.items()}
    unit = "USD" if price is not None else "chip-hours"
    points = [(float(value), cost) for value, cost in costs.items()]
    cheapest = min(costs, key=costs.__getitem__)
    quickest = min(days, key=days.__getitem__)
    label: Callable[[float], str] = format_si
    yield Plot(
        id="cost",
        title=f"Cost of {what}",
        remark=(
            f"{unit} on more chips"
            + (f", at the list price of ${price:.2f} a chip-hour" if price is not None else "")
        ),
        alt=f"{unit} of {what} against chips: "
        + ", ".join(f"{label(cost)} on {short_chips(x)}" for x, cost in points),
        x=value_axis("chips", [x for x, _ in points], short_chips),
        y=linear_axis(unit, max(y for _, y in points), short_si),
        lines=(_dotted(unit, "s2", found, points),),
        marks=_marks(sweep),
        columns=("chips", "days", unit),
        rows=tuple(
            (f"{value:,}", short_days(days[value]), label(cost)) for value, cost in costs.items()
        ),
        findings=(
            f"cheapest: {label(costs[cheapest])} {unit} in {short_days(days[cheapest])} days on "
            f"{cheapest:,} chips",
            f"quickest: {short_days(days[quickest])} days for {label(costs[quickest])} {unit} on "
            f"{quickest:,} chips",
        ),
    )
