"""`muster plan --sweep` on a terminal: one point a row, with a bar of its throughput."""

from rich.text import Text

from muster.planner.sizes import SHORTEST_SEQUENCE
from muster.planner.sweep import Sweep, SweepPoint
from muster.report.columns import Column, shown
from muster.report.terminal import BAD, QUIET, Grid, bar, console, keep_together, title
from muster.report.trust import error_words
from muster.report.words import SHORT_BOUNDS, layout_text
from muster.units import format_seconds, format_si

BAR_WIDTH = 10
NOTHING = "-"
HEADINGS = {"batch": "batch tokens", "chips": "chips", "seq": "sequence"}
REMARKS = {
    "batch": "the batch halved and doubled",
    "chips": "slices that the batch fills, halved and doubled",
    "seq": "sequence length varied, as many tokens a batch",
}
COLUMNS = (
    Column("mark"),
    Column("value"),
    Column("cluster", left=True, rank=4),
    Column("step"),
    Column("rate", rank=5),
    Column("MFU"),
    Column("bar", left=True, rank=1),
    Column("bound", left=True, rank=2),
    Column("days"),
    Column("USD", rank=3),
    Column("layout", left=True, folds=True),
)


def print_sweep(sweep: Sweep) -> None:
    """Print a sweep's points, the given one marked, and how they were searched."""
    screen = console()
    screen.print(title(f"Sweep of {HEADINGS[sweep.what]}", REMARKS[sweep.what]))
    screen.print(sweep_table(sweep))
    screen.print(keep_together(Text(_legend(sweep), style=QUIET)))


def sweep_table(sweep: Sweep) -> Grid:
    """One row a point, as wide as the terminal at most."""
    left_out = {
        "cluster": sweep.what != "chips",
        "rate": sweep.what != "seq",
        "days": all(point.days is None for point in sweep.points),
        "USD": all(point.cost_usd is None for point in sweep.points),
    }
    columns = [each for each in COLUMNS if not left_out.get(each.name)]
    best = max((utilization(sweep, point) or 0.0 for point in sweep.points), default=0.0)
    rows = [_cells(sweep, point, best) for point in sweep.points]
    headings = {"mark": "", "bar": "", "value": HEADINGS[sweep.what], "rate": "tok/s a chip"}
    if sweep.what == "seq":
        headings["MFU"] = "MFU causal"
    return shown(columns, rows, headings=headings)


def utilization(sweep: Sweep, point: SweepPoint) -> float | None:
    """The MFU that points can be compared by: over sequence lengths attention's work counts too."""
    return point.mfu_causal if sweep.what == "seq" else point.mfu


def _cells(sweep: Sweep, point: SweepPoint, best: float) -> dict[str, str | Text]:
    cells: dict[str, str | Text] = {
        "mark": "->" if point.given else "",
        "value": f"{point.value:,}",
        "cluster": point.cluster.name,
    }
    mfu = utilization(sweep, point)
    if point.choice is None or mfu is None:
        blank = dict.fromkeys(("step", "rate", "MFU", "days", "USD", "bound"), NOTHING)
        why_not = f"does not fit: {point.why_not}"
        return {**cells, **blank, "bar": "", "layout": Text(why_not, style=BAD)}
    idle = f" on {point.cluster.chips:,} chips" if sweep.what != "chips" and _fewer(sweep) else ""
    return {
        **cells,
        "step": format_seconds(point.choice.seconds),
        "rate": f"{point.tokens_per_second_per_chip or 0:,.0f}",
        "MFU": f"{mfu:.1%}",
        "bar": Text(bar(mfu / best, BAR_WIDTH), style="cyan"),
        "bound": SHORT_BOUNDS[point.bound] if point.bound else "",
        "days": NOTHING if point.days is None else short_days(point.days),
        "USD": NOTHING if point.cost_usd is None else format_si(point.cost_usd),
        "layout": f"{layout_text(point.choice.layout)}{idle}, remat {point.choice.remat.value}",
    }


def _fewer(sweep: Sweep) -> bool:
    """Whether points fill different numbers of chips."""
    return len({point.cluster.chips for point in sweep.points}) > 1


def short_days(days: float) -> str:
    """Days, with a decimal where they are few.

    >>> short_days(43.46), short_days(4846.4)
    ('43.5', '4,846')
    """
    return f"{days:,.1f}" if days < 1000 else f"{days:,.0f}"


def _legend(sweep: Sweep) -> str:
    convention = "every matmul, causal" if sweep.what == "seq" else "6N"
    error, _ = error_words(sweep.given.cluster.chip.id, sweep.architecture)
    return (
        f"-> what was asked; MFU: {convention}, predicted; expected error of a step: {error}; "
        f"every point searched in full{_ends(sweep)}"
    )


def _ends(sweep: Sweep) -> str:
    """Why the sweep goes no further, where that is not the number of its points."""
    longest = sweep.architecture.context_length
    if sweep.what != "seq" or longest is None:
        return ""
    last, first = sweep.points[-1].value, sweep.points[0].value
    ends = []
    if first // 2 < SHORTEST_SEQUENCE:
        ends.append(f"none shorter than {SHORTEST_SEQUENCE:,} tokens")
    if 2 * last > longest:
        ends.append(f"the model's context ends at {longest:,} tokens")
    return f"; {'; '.join(ends)}" if ends else ""
