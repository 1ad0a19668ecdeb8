"""Several clusters side by side on a terminal, one a row."""

from collections.abc import Collection

from rich.text import Text

from muster.planner.plan import Plan
from muster.report.columns import Column, shown
from muster.report.terminal import QUIET, WARN, console, keep_together, title
from muster.report.trust import error_words, shortage
from muster.report.words import SHORT_BOUNDS, layout_text
from muster.units import format_count, format_seconds

NOTHING = "-"
COLUMNS = (
    Column("cluster", left=True),
    Column("chips", rank=4),
    Column("layout", left=True, folds=True),
    Column("bound", left=True, rank=3),
    Column("step"),
    Column("error", rank=2),
    Column("MFU", rank=5),
    Column("memory", rank=1),
    Column("days"),
    Column("USD"),
)


def print_comparison(plans: list[Plan]) -> None:
    """Print several clusters, in the order given."""
    screen = console()
    workload = plans[0].workload
    screen.print(
        title(
            f"{plans[0].architecture.name}: {len(plans)} clusters",
            f"batch {format_count(workload.batch_tokens)} tokens = "
            f"{workload.batch_sequences:,} x {workload.sequence_length:,}",
        )
    )
    run = any(plan.estimate.train_days is not None for plan in plans)
    columns = [each for each in COLUMNS if run or each.name not in {"days", "USD"}]
    table = shown(columns, [_compared(plan) for plan in plans])
    screen.print(table)
    for plan in plans:
        if not plan.fits:
            short, nearest = shortage(plan)
            line = f"! {plan.cluster.name}: does not fit: {short}"
            line += f"; it fits {nearest}" if nearest else ""
            screen.print(keep_together(Text(line, style=WARN)))
    screen.print(
        keep_together(Text(_legend(plans, {each.header for each in table.columns}), QUIET))
    )


def _legend(plans: list[Plan], names: Collection[object]) -> str:
    how = "assumed" if plans[0].estimate.assumed else "predicted"
    meanings = {
        "MFU": f"MFU: 6N, {how}.",
        "error": "error: of predicted steps on measured runs of that chip, on average.",
        "USD": "USD: on-demand list price of the chips used, without failures.",
    }
    return " ".join(meaning for name, meaning in meanings.items() if name in names)


def _compared(plan: Plan) -> dict[str, str | Text]:
    e = plan.estimate
    row: dict[str, str | Text] = {
        "cluster": plan.choice.cluster.name,
        "chips": f"{plan.layout.chips_used:,}",
        "memory": f"{plan.memory.total / plan.memory.usable:.0%}",
    }
    if not plan.fits:
        names = ("bound", "step", "error", "MFU", "days", "USD")
        return {**row, **dict.fromkeys(names, NOTHING), "layout": "does not fit"}
    return {
        **row,
        "layout": f"{layout_text(plan.layout)}, remat {plan.choice.remat.value}",
        "bound": SHORT_BOUNDS[e.bound],
        "step": format_seconds(e.step_seconds),
        "error": error_words(plan.cluster.chip.id, plan.architecture)[0],
        "MFU": f"{e.mfu:.1%}",
        "days": f"{e.train_days:,.1f}" if e.train_days is not None else NOTHING,
        "USD": f"{e.cost_usd:,.0f}" if e.cost_usd is not None else NOTHING,
    }
