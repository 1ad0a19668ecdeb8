"""Draw compute and communication against the batch, from `planner.strategies`."""

from muster.planner.plan import Plan
from muster.planner.strategies import (
    ALWAYS,
    NEVER,
    BookLayer,
    Strategy,
    book_layer,
    hides_from,
    strategies,
)
from muster.report.plots import Axis, Dot, Line, Mark, Plot, log_axis, short_seconds, short_tokens
from muster.units import format_seconds, format_si

# Batches on each side of the plan's own: 2^-6 to 2^6 of it, one point for each half doubling.
DOUBLINGS = 6
POINTS_PER_DOUBLING = 2
STYLES = {"fsdp": "s1", "tensor": "s2", "mixed": "s3", "dcn": "s4"}


def strategies_plot(plan: Plan) -> Plot | None:
    """The figure; None where there is no MLP to speak of or nothing to split over."""
    layer = book_layer(plan.architecture, plan.cluster)
    if layer is None:
        return None
    crossings = {strategy: hides_from(layer, strategy) for strategy in strategies(layer)}
    batches = _batches(plan.workload.batch_tokens)
    lines = _lines(layer, tuple(crossings), batches)
    x = log_axis("tokens in the batch", batches, short_tokens, base=4)
    seconds = [y for line in lines for _, y in line.points]
    y = log_axis("seconds of one layer's forward pass", seconds, short_seconds, base=10, most=5)
    findings = tuple(
        _finding(plan, strategy, crossing, layer) for strategy, crossing in crossings.items()
    )
    batch = plan.workload.batch_tokens
    return Plot(
        id="strategies",
        title="Compute and communication against the batch",
        remark=(
            "closed form of one layer at full rates, the book's figure for this model on "
            f"{plan.cluster.name}: a strategy hides its traffic where its line is below compute"
        ),
        alt="Time of one layer against the batch, by strategy. " + ". ".join(findings),
        x=x,
        y=y,
        lines=lines,
        marks=(Mark(at=batch, label="this batch"),),
        circles=tuple(
            _circle(x, y, strategy, crossing, layer)
            for strategy, crossing in crossings.items()
            if batches[0] < crossing < batches[-1]
        ),
        columns=("", "this batch", *(short_tokens(batch * f) for f in (0.25, 4))),
        rows=_rows(layer, tuple(crossings), (batch, batch / 4, batch * 4)),
        findings=findings,
    )


def _lines(
    layer: BookLayer, each_way: tuple[Strategy, ...], batches: list[float]
) -> tuple[Line, ...]:
    curves = [
        ("compute", "s0", layer.math),
        *((each.name, STYLES[each.kind], each.seconds) for each in each_way),
    ]
    return tuple(
        Line(name=name, style=style, points=[(batch, seconds(batch)) for batch in batches])
        for name, style, seconds in curves
    )


def _rows(
    layer: BookLayer, each_way: tuple[Strategy, ...], batches: tuple[float, ...]
) -> tuple[tuple[str, ...], ...]:
    curves = [("compute", layer.math), *((each.name, each.seconds) for each in each_way)]
    return tuple(
        (name, *(format_seconds(seconds(batch)) for batch in batches)) for name, seconds in curves
    )


def _batches(batch: int) -> list[float]:
    steps = DOUBLINGS * POINTS_PER_DOUBLING
    return [batch * 2.0 ** (k / POINTS_PER_DOUBLING) for k in range(-steps, steps + 1)]


def _finding(plan: Plan, strategy: Strategy, crossing: float, layer: BookLayer) -> str:
    if crossing == ALWAYS:
        return f"{strategy.name}: hidden at every batch"
    if crossing == NEVER:
        batch = plan.workload.batch_tokens
        ratio = strategy.seconds(batch) / layer.math(batch)
        return f"{strategy.name}: never hidden, {ratio:,.1f} times compute at this batch"
    each = crossing / plan.cluster.chips
    word = "holds here" if crossing <= plan.workload.batch_tokens else "not here"
    return f"{strategy.name}: hidden from {format_si(crossing)} tokens, {each:,.0f} a chip ({word})"


def _circle(x: Axis, y: Axis, strategy: Strategy, crossing: float, layer: BookLayer) -> Dot:
    return Dot(
        x=x.place(crossing),
        y=y.place(layer.math(crossing)),
        style=STYLES[strategy.kind],
        title=f"{strategy.name}: hidden from {format_si(crossing)} tokens",
    )
