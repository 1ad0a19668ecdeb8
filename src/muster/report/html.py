"""`muster plan --html`: the plan as one page that needs nothing else.

Pictures are HTML and inline SVG from templates, no script and no library: the page is small, opens
without a network, and its content policy forbids every script and every request, so whatever a
model is called cannot do anything. Plotly's own bundle would be 4.8 MB a page and need scripts.
Whatever a user wrote goes through jinja2's escaping. The same plan gives the same bytes.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from muster.planner.plan import Plan
from muster.planner.search import Choice, Minimize, Restrictions
from muster.planner.sweep import Sweep, sweep_of
from muster.report.assumptions import assumptions
from muster.report.bars import memory_bars, waterfall
from muster.report.rules_text import condition, legend
from muster.report.scaling import scaling_plots, sweep_rows
from muster.report.strategies import strategies_plot
from muster.report.trust import error_words, shortage, warnings_of
from muster.report.words import (
    BOUNDS,
    VIRTUAL_STAGES,
    counted,
    layout_text,
    training_lines,
)
from muster.units import format_bytes, format_count, format_flops, format_seconds, format_si

PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One key number."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class AlternativeRow:
    """One layout of the table of alternatives; `width` is of its step, the slowest is 100."""

    layout: str
    chips: str
    remat: str
    step: str
    width: float
    slower: str
    memory: str
    full: str
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class RuleRow:
    """One rule of thumb with this plan's numbers."""

    answer: str
    numbers: str
    statement: str


def html_of(
    plan: Plan, *, restrictions: Restrictions | None = None, minimize: Minimize = "time"
) -> str:
    """The page of a plan, as text.

    Args:
        plan: what to show.
        restrictions: what the plan's own search held fixed; the curves hold it too.
        minimize: what that search took the least of.
    """
    held = restrictions or Restrictions()
    # Fewest or cheapest chips would be the same at every point: their curve is of time.
    chips = sweep_of(plan, "chips", held, minimize="time")
    batch = sweep_of(plan, "batch", held, minimize=minimize)
    strategies = strategies_plot(plan)
    columns, rows = sweep_rows(chips)
    return _template().render(
        plan=plan,
        title=f"{plan.architecture.name} on {plan.cluster.name}",
        subtitle=_subtitle(plan),
        verdict=_verdict(plan),
        detail=_detail(plan),
        tiles=_tiles(plan) if plan.fits else _short_tiles(plan, chips),
        warnings=warnings_of(plan),
        word="chosen" if plan.fits else "closest",
        memory=memory_bars(plan),
        waterfall=waterfall(plan),
        strategies=strategies,
        plots=scaling_plots(plan, chips, batch),
        sweep_columns=columns,
        sweep_rows=rows,
        alternatives=_alternatives(plan),
        rules=tuple(
            RuleRow(answer=answer, numbers=numbers, statement=rule.statement)
            for rule in plan.rules
            for numbers, answer in (condition(rule),)
        ),
        letters="; ".join(legend(plan.rules)),
        model=_model(plan),
        assumed=assumptions(plan),
        training=training_lines(plan),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("plan.html")


def _subtitle(plan: Plan) -> str:
    w = plan.workload
    run = f"; a run of {format_si(w.train_tokens)} tokens" if w.train_tokens else ""
    return (
        f"{counted(plan.cluster.chips, 'chip')}; batch of {format_count(w.batch_tokens)} tokens = "
        f"{w.batch_sequences:,} sequences of {w.sequence_length:,}{run}"
    )


def _verdict(plan: Plan) -> str:
    if not plan.fits:
        return "does not fit"
    return f"fits, {BOUNDS[plan.estimate.bound]}"


def _detail(plan: Plan) -> str:
    """The layout; where nothing fits, what is missing and the nearest change that would."""
    if not plan.fits:
        short, nearest = shortage(plan)
        return f"{short}; it fits {nearest}" if nearest else short
    where = plan.choice.cluster.name
    line = f"{layout_text(plan.layout)}, remat {plan.choice.remat.value}, on {where}"
    return f"{line} ({VIRTUAL_STAGES})" if plan.layout.virtual_stages > 1 else line


def _tiles(plan: Plan) -> tuple[Tile, ...]:
    e, memory = plan.estimate, plan.memory
    how = "assumed" if e.assumed else "predicted"
    error, basis = error_words(plan.cluster.chip.id, plan.architecture)
    off = "" if e.assumed else f", error {error.replace('+-', PLUS_MINUS)} ({basis})"
    tiles = [
        Tile(
            label="step",
            value=format_seconds(e.step_seconds),
            remark=f"{how}{off}; {format_seconds(e.at_peak_seconds)} at peak",
        ),
        Tile(label="MFU", value=f"{e.mfu:.1%}", remark=f"6N, {how}; {e.mfu_causal:.1%} causal"),
        Tile(
            label="tokens/s a chip",
            value=f"{e.tokens_per_second_per_chip:,.0f}",
            remark=f"on {e.chips:,} of {counted(plan.cluster.chips, 'chip')}",
        ),
        Tile(
            label="memory of a chip",
            value=f"{memory.total / memory.usable:.0%}",
            remark=f"{format_bytes(memory.total)} of {format_bytes(memory.usable)} usable",
        ),
    ]
    return (*tiles, *_run_tiles(plan))


def _short_tiles(plan: Plan, chips: Sweep) -> tuple[Tile, ...]:
    """What is missing, and the first size of the sweep that has it: no times of what cannot run."""
    memory = plan.memory
    tiles = [
        Tile(
            label="memory of a chip",
            value=f"{memory.total / memory.usable:.0%}",
            remark=f"{format_bytes(memory.total)} of {format_bytes(memory.usable)} usable",
        ),
        Tile(label="missing", value=format_bytes(memory.total - memory.usable), remark="a chip"),
    ]
    larger = (point for point in chips.points if point.choice and point.mfu)
    enough = next(larger, None)
    if enough and enough.seconds and enough.mfu:
        tiles += [
            Tile(
                label="would fit",
                value=counted(enough.cluster.chips, "chip"),
                remark=enough.cluster.name,
            ),
            Tile(label="step there", value=format_seconds(enough.seconds), remark="predicted"),
            Tile(label="MFU there", value=f"{enough.mfu:.1%}", remark="6N, predicted"),
        ]
    return tuple(tiles)


def _run_tiles(plan: Plan) -> tuple[Tile, ...]:
    e, price = plan.estimate, plan.cluster.chip.price_usd_per_hour
    if e.train_seconds is None or e.chip_hours is None:
        return ()
    tiles = [
        Tile(
            label="run",
            value=format_seconds(e.train_seconds),
            remark=f"{plan.workload.steps or 0:,.0f} steps, without failures",
        ),
        Tile(label="chip-hours", value=format_si(e.chip_hours), remark=f"{e.chip_hours:,.0f}"),
    ]
    if price is not None and e.cost_usd is not None:
        tiles.append(
            Tile(
                label="USD",
                value=format_si(e.cost_usd),
                remark=f"${e.cost_usd:,.0f} at ${price:.2f} a chip-hour",
            )
        )
    return tuple(tiles)


def _alternatives(plan: Plan) -> tuple[AlternativeRow, ...]:
    choices = (plan.choice, *plan.alternatives)
    slowest = max(choice.seconds for choice in choices)
    return tuple(_alternative(plan, choice, slowest) for choice in choices)


def _alternative(plan: Plan, choice: Choice, slowest: float) -> AlternativeRow:
    slower = choice.seconds / plan.choice.seconds - 1
    return AlternativeRow(
        layout=layout_text(choice.layout),
        chips=f"{choice.layout.chips_used:,}",
        remat=choice.remat.value,
        step=format_seconds(choice.seconds),
        width=round(100 * choice.seconds / slowest, 2),
        slower="" if choice is plan.choice else f"{slower:+.1%}",
        memory=format_bytes(choice.memory.total),
        full=f"{choice.memory.total / choice.memory.usable:.0%}",
        chosen=choice is plan.choice,
    )


def _model(plan: Plan) -> tuple[tuple[str, str], ...]:
    a, params, e = plan.architecture, plan.params, plan.estimate
    sizes = {
        "layers L": a.num_layers,
        "d_model D": a.d_model,
        "d_ff F": a.d_ff,
        "heads N": a.num_heads,
        "KV heads K": a.num_kv_heads,
        "head_dim H": a.head_dim,
        "vocabulary V": a.vocab_size,
    }
    if a.experts:
        sizes |= {
            "experts E": a.experts.num_experts,
            "of which a token takes k": a.experts.experts_per_token,
        }
    rows = [(name, format_count(value)) for name, value in sizes.items() if value]
    rows.insert(0, ("parameters", format_count(params.trainable)))
    if params.active != params.trainable:
        rows.insert(1, ("active parameters", format_count(params.active)))
    rows += [
        ("FLOPs a token, 6N", format_flops(e.flops_per_token)),
        ("FLOPs a token, every matmul, causal", format_flops(e.flops.model_per_token)),
        ("FLOPs a step, 6N", format_flops(e.flops_per_step)),
    ]
    if e.train_flops is not None:
        rows.append(("FLOPs of the run, 6N", format_flops(e.train_flops)))
    rows += [(f"filled in: {key}", json.dumps(value)) for key, value in a.filled_in]
    return tuple(rows)
