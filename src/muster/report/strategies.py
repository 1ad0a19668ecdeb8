"""Draw compute and communication against the batch, from `planner.strategies`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
from muster.units import format_seconds

# Batches on each side of the plan's own: 2^-6 to 2^6 of it, one point for each half doubling.
DOUBLINGS = 6
POINTS_PER_DOUBLING = 2
STYLES = {"fsdp": "s1", "tensor": "s2", "mixed": "s3", "dcn": "s4"}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Strategies whose traffic takes the same time at every batch: drawn once, named together."""

    strategy: Strategy
    names: tuple[str, ...]
    crossing: float
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """All names; those after the first coincide with it."""
        return " = ".join(self.names)


def strategies_plot(plan: Plan) -> Plot | None:
    """The figure; None where there is no MLP to speak of or nothing to split over."""
    layer = book_layer(plan.architecture, plan.cluster)
    if layer is None:
        return None
    batches = _batches(plan.workload.batch_tokens)
    curves = _curves(layer, batches)
    compute = Line(
        name="compute", style="s0", points=[(batch, layer.math(batch)) for batch in batches]
    )
    lines = (compute, *(_line(curve) for curve in curves))
    x = log_axis("tokens in the batch", batches, short_tokens, base=4)
    seconds = [y for line in lines for _, y in line.points]
    y = log_axis("seconds of one layer's forward pass", seconds, short_seconds, base=10, most=5)
    findings = tuple(_findings(plan, curves, layer))
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
            _circle(x, y, curve, layer)
            for curve in curves
            if batches[0] < curve.crossing < batches[-1]
        ),
        columns=("", "this batch", *(short_tokens(batch * f) for f in (0.25, 4))),
        rows=_rows(layer, curves, (batch, batch / 4, batch * 4)),
        findings=findings,
    )


def _curves(layer: BookLayer, batches: list[float]) -> tuple[Curve, ...]:
    """One for all strategies that take the same time."""
    found: list[Curve] = []
    for each in strategies(layer):
        points = tuple((batch, each.seconds(batch)) for batch in batches)
        same = next((curve for curve in found if _coincide(curve.points, points)), None)
        if same is not None:
            found[found.index(same)] = replace(same, names=(*same.names, each.name))
            continue
        crossing = hides_from(layer, each)
        found.append(Curve(strategy=each, names=(each.name,), crossing=crossing, points=points))
    return tuple(found)


def _coincide(one: tuple[tuple[float, float], ...], other: tuple[tuple[float, float], ...]) -> bool:
    """Whether nobody could tell one line from the other."""
    return all(math.isclose(y, z, rel_tol=1e-3) for (_, y), (_, z) in zip(one, other, strict=True))


def _line(curve: Curve) -> Line:
    return Line(name=curve.name, style=STYLES[curve.strategy.kind], points=curve.points)


def _rows(
    layer: BookLayer, curves: tuple[Curve, ...], batches: tuple[float, ...]
) -> tuple[tuple[str, ...], ...]:
    each_way = [("compute", layer.math), *((each.name, each.strategy.seconds) for each in curves)]
    return tuple(
        (name, *(format_seconds(seconds(batch)) for batch in batches)) for name, seconds in each_way
    )


def _batches(batch: int) -> list[float]:
    steps = DOUBLINGS * POINTS_PER_DOUBLING
    return [batch * 2.0 ** (k / POINTS_PER_DOUBLING) for k in range(-steps, steps + 1)]


def _findings(plan: Plan, curves: tuple[Curve, ...], layer: BookLayer) -> Iterator[str]:
    """From where on each hides; those that hide from the same batch on in one sentence."""
    together: dict[str, list[str]] = {}
    for curve in curves:
        together.setdefault(_crosses(plan, curve, layer), []).append(curve.name)
    for text, names in together.items():
        yield f"{' and '.join(names)}: {text}"


def _crosses(plan: Plan, curve: Curve, layer: BookLayer) -> str:
    crossing, seconds = curve.crossing, curve.strategy.seconds
    if crossing == ALWAYS:
        return "hidden at every batch"
    if crossing == NEVER:
        batch = plan.workload.batch_tokens
        ratio = seconds(batch) / layer.math(batch)
        return f"never hidden, {ratio:,.1f} times compute at this batch"
    each = crossing / plan.cluster.chips
    word = "holds here" if crossing <= plan.workload.batch_tokens else "not here"
    return f"hidden from {short_tokens(crossing)} tokens, {each:,.0f} a chip ({word})"


def _circle(x: Axis, y: Axis, curve: Curve, layer: BookLayer) -> Dot:
    return Dot(
        x=x.place(curve.crossing),
        y=y.place(layer.math(curve.crossing)),
        style=STYLES[curve.strategy.kind],
        title=f"{curve.name}: hidden from {short_tokens(curve.crossing)} tokens",
    )
