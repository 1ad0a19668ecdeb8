"""`muster plan --sweep` on a terminal: one point a row, with a bar of its MFU."""

from rich.table import Table
from rich.text import Text

from muster.planner.sweep import Sweep, SweepPoint
from muster.report.terminal import BAD, QUIET, bar, console, title
from muster.units import format_seconds, format_si

BAR_WIDTH = 10
NOTHING = "-"
HEADINGS = {"batch": "batch tokens", "chips": "chips", "seq": "sequence"}
LEFT = {"", "cluster", "bound", "layout"}
REMARKS = {
    "batch": "the batch halved and doubled",
    "chips": "slices that the batch fills, halved and doubled",
    "seq": "sequence length varied, as many tokens a batch",
}


def print_sweep(sweep: Sweep) -> None:
    """Print a sweep's points, the given one marked, and how they were searched."""
    screen = console()
    screen.print(title(f"Sweep of {HEADINGS[sweep.what]}", REMARKS[sweep.what]))
    screen.print(sweep_table(sweep))
    screen.print(Text(_legend(sweep), style=QUIET))


def sweep_table(sweep: Sweep) -> Table:
    """One row a point, at most 100 columns wide."""
    run = any(point.days is not None for point in sweep.points)
    priced = any(point.cost_usd is not None for point in sweep.points)
    names = ["", HEADINGS[sweep.what]]
    names += ["cluster"] if sweep.what == "chips" else []
    names += ["step", "MFU", "", "bound"]
    names += ["days"] if run else []
    names += ["USD"] if priced else []
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    for name in names:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    table.add_column("layout", overflow="fold", ratio=1)
    best = max((point.mfu or 0.0 for point in sweep.points), default=0.0)
    for point in sweep.points:
        cells = _cells(sweep, point, best)
        table.add_row(*(cells[name] for name in _keys(sweep, run=run, priced=priced)))
    return table


def _keys(sweep: Sweep, *, run: bool, priced: bool) -> list[str]:
    keys = ["mark", "value"]
    keys += ["cluster"] if sweep.what == "chips" else []
    keys += ["step", "mfu", "bar", "bound"]
    keys += ["days"] if run else []
    keys += ["usd"] if priced else []
    return [*keys, "layout"]


def _cells(sweep: Sweep, point: SweepPoint, best: float) -> dict[str, str | Text]:
    cells: dict[str, str | Text] = {
        "mark": "->" if point.given else "",
        "value": f"{point.value:,}",
        "cluster": point.cluster.name,
    }
    if point.choice is None or point.mfu is None:
        blank = dict.fromkeys(("step", "mfu", "days", "usd", "bound"), NOTHING)
        return {**cells, **blank, "bar": "", "layout": Text(f"{point.why_not}", style=BAD)}
    idle = f" on {point.cluster.chips:,} chips" if sweep.what != "chips" and _fewer(sweep) else ""
    return {
        **cells,
        "step": format_seconds(point.choice.seconds),
        "mfu": f"{point.mfu:.1%}",
        "bar": Text(bar(point.mfu / best, BAR_WIDTH), style="cyan"),
        "bound": point.bound or "",
        "days": NOTHING if point.days is None else short_days(point.days),
        "usd": NOTHING if point.cost_usd is None else format_si(point.cost_usd),
        "layout": f"{point.choice.layout}{idle}, remat {point.choice.remat.value}",
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
    how = (
        "every point searched in full"
        if sweep.full
        else "each point searched from its neighbour's layout, not in full"
    )
    return f"-> what was asked; MFU: 6N, predicted; {how}"
