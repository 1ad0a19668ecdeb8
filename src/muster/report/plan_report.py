"""`muster plan` on a terminal: model, cost, memory, rules, layout, warnings."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.planner.layout import Candidate
from muster.planner.plan import Plan
from muster.planner.rules import Rule
from muster.report.terminal import BAD, GOOD, QUIET, WARN, bar, console, facts_table, title
from muster.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_si,
)


def print_plan(plan: Plan, *, written_to: Path | None = None) -> None:
    """Print everything that a person would ask of a plan."""
    screen = console()
    for section in (_head, _model, _cost, _memory, _rules, _layout, _warnings):
        section(plan, screen)
    if written_to:
        screen.print(f"Written to {written_to}", style=QUIET)


def _head(plan: Plan, screen: Console) -> None:
    workload = plan.workload
    run = f", {format_si(workload.train_tokens)} tokens" if workload.train_tokens else ""
    screen.print(
        title(
            f"{plan.architecture.name} on {plan.cluster.name}",
            f"{plan.cluster.chips:,} chips; batch {format_count(workload.batch_tokens)} tokens = "
            f"{workload.batch_sequences:,} x {workload.sequence_length:,}{run}",
        )
    )
    screen.print(_verdict(plan))
    screen.print()


def _verdict(plan: Plan) -> Text:
    if not plan.fits:
        return Text("does not fit", style=BAD)
    candidate = plan.candidate
    bound = "compute-bound" if candidate.compute_bound else f"bound by {candidate.slowest} traffic"
    text = Text(f"fits, {bound}", style=GOOD if candidate.compute_bound else WARN)
    return text.append(f": {plan.layout}, remat {plan.workload.remat}", style="default")


def _model(plan: Plan, screen: Console) -> None:
    a, params = plan.architecture, plan.params
    letters = {
        "L": a.num_layers,
        "D": a.d_model,
        "F": a.d_ff,
        "N": a.num_heads,
        "K": a.num_kv_heads,
        "H": a.head_dim,
        "V": a.vocab_size,
    }
    experts = a.experts
    if experts:
        letters |= {"E": experts.num_experts, "k": experts.experts_per_token}
    screen.print(title("Model", "  ".join(f"{k}={v}" for k, v in letters.items() if v)))
    table = facts_table()
    table.add_row("parameters", format_count(params.trainable), "trainable, a tied head once")
    if params.active != params.trainable:
        table.add_row("", format_count(params.active), "active: what one token meets")
    for key, value in a.filled_in:
        table.add_row("filled in", key, f"absent, so its class's default: {json.dumps(value)}")
    screen.print(table)
    screen.print()


def _cost(plan: Plan, screen: Console) -> None:
    e, w = plan.estimate, plan.workload
    convention = "6N: 6 x active parameters" if plan.architecture.experts else "6N: 6 x parameters"
    screen.print(title("Cost", f"at an assumed MFU of {e.mfu:.0%} (6N) on {_chips_used(plan)}"))
    table = facts_table()
    table.add_row("FLOPs per token", format_flops(e.flops_per_token), convention)
    table.add_row(
        "",
        format_flops(e.flops.model_per_token),
        f"every matmul, causal attention; MFU in this convention {e.mfu_causal:.1%}",
    )
    if e.flops.recompute:
        again = e.flops.recompute / e.flops.sequence_length
        table.add_row("", format_flops(again), f"computed again under remat {w.remat}")
    for missing in e.flops.not_counted:
        table.add_row("", "not counted", missing)
    table.add_row("FLOPs per step", format_flops(e.flops_per_step), "6N x batch")
    table.add_row(
        "step",
        format_seconds(e.step_seconds),
        f"{format_seconds(e.compute_seconds)} at peak; "
        f"{e.tokens_per_second_per_chip:,.0f} tokens/s a chip",
    )
    if e.train_flops is not None and e.train_seconds is not None:
        table.add_row("run", format_flops(e.train_flops), f"{w.steps or 0:,.0f} steps")
        table.add_row("", format_seconds(e.train_seconds), f"{_years(plan)} on one chip at peak")
        table.add_row("", f"{e.chip_hours or 0:,.0f}", f"hours of {plan.cluster.chips:,} chips")
        table.add_row("", *_price(plan))
    screen.print(table)
    screen.print()


def _chips_used(plan: Plan) -> str:
    used = plan.layout.chips_used
    return (
        f"{used:,} chips"
        if used == plan.cluster.chips
        else f"{used:,} of {plan.cluster.chips:,} chips"
    )


def _years(plan: Plan) -> str:
    seconds = (plan.estimate.train_flops or 0) / plan.cluster.chip.bf16_flops
    return format_seconds(seconds)


def _price(plan: Plan) -> tuple[str, str]:
    price = plan.cluster.chip.price_usd_per_hour
    if price is None or plan.estimate.cost_usd is None:
        return "-", f"no list price of {plan.cluster.chip.id} is known"
    return f"${plan.estimate.cost_usd:,.0f}", f"at ${price:g} a chip-hour on demand"


def _memory(plan: Plan, screen: Console) -> None:
    memory = plan.estimate.memory
    w = plan.workload
    screen.print(
        title(
            "Memory",
            f"per chip, of {format_bytes(memory.usable)} usable; {w.param_dtype} parameters, "
            f"{w.optimizer_dtype} {w.optimizer} moments",
        )
    )
    remarks = {
        "parameters": (memory.params, f"over {_state_ways(plan)}"),
        "gradients": (memory.gradients, f"{w.param_dtype}, as sharded"),
        "optimizer": (memory.optimizer, "two moments"),
        "activations": (memory.activations, f"remat {w.remat}, {_in_flight(plan)}"),
        "logits": (memory.logits, "f32, before any chunking of the loss"),
        "workspace": (memory.workspace, "two layers' gathered weights"),
        "total": (memory.total, f"{memory.total / memory.usable:.0%} of usable"),
    }
    table = facts_table()
    for name, (size, remark) in remarks.items():
        cells = Text(bar(size / memory.usable, 24), style=BAD if size > memory.usable else "cyan")
        table.add_row(name, format_bytes(size), cells.append(f" {remark}", style=QUIET))
    screen.print(table)
    screen.print()


def _state_ways(plan: Plan) -> str:
    return f"{plan.layout.weight_shards * plan.layout.tensor:,} chips"


def _in_flight(plan: Plan) -> str:
    parts = plan.layout.microbatches
    return "the whole batch at once" if parts == 1 else f"{parts} microbatches"


def _rules(plan: Plan, screen: Console) -> None:
    screen.print(title("Rules of thumb", "the scaling book's, with this plan's numbers"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for rule in plan.rules:
        table.add_row(_mark(rule), _comparison(rule), rule.statement)
    screen.print(table)
    screen.print()


def _mark(rule: Rule) -> Text:
    if rule.holds is None:
        return Text("")
    return Text("yes", style=GOOD) if rule.holds else Text("no", style=BAD)


def _comparison(rule: Rule) -> str:
    value = _number(rule.value)
    if rule.bound is None:
        return value
    relation = "<" if rule.value < rule.bound else ">" if rule.value > rule.bound else "="
    return f"{value} {relation} {_number(rule.bound)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}".removesuffix(".0")


def _layout(plan: Plan, screen: Console) -> None:
    screen.print(
        title("Layout", "the closed-form optimum rounded to what divides; one layer's forward pass")
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    for name in ("", "layout", "chips", "math", "fsdp", "tensor", "dcn", "traffic/math"):
        table.add_column(name, justify="left" if name in {"", "layout"} else "right")
    table.add_row("->", *_row(plan.candidate))
    for other in plan.alternatives:
        table.add_row("", *_row(other), style=QUIET)
    screen.print(table)
    screen.print()


def _row(candidate: Candidate) -> tuple[str, ...]:
    times = (candidate.math, candidate.fsdp, candidate.tensor, candidate.dcn)
    return (
        str(candidate.layout),
        f"{candidate.layout.chips_used:,}",
        *(format_seconds(t) if t else "-" for t in times),
        f"{candidate.communication / candidate.math:.2f}",
    )


def _warnings(plan: Plan, screen: Console) -> None:
    if not plan.warnings:
        return
    screen.print(title("Warnings"))
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style=WARN)
    table.add_column(ratio=1)
    for warning in plan.warnings:
        table.add_row("!", warning)
    screen.print(table)
    screen.print()
