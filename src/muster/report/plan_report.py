"""`muster plan` on a terminal: model, cost, memory, rules, layout, warnings."""

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.planner.plan import Plan
from muster.planner.rules import Rule
from muster.planner.search import Choice
from muster.report.terminal import BAD, GOOD, QUIET, WARN, bar, console, facts_table, title
from muster.sharding.mesh import Layout
from muster.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_si,
)

BOUNDS = {
    "compute": "compute-bound",
    "hbm": "bound by HBM",
    "ici": "bound by ICI",
    "dcn": "bound by DCN",
    "nvlink": "bound by NVLink",
    "network": "bound by the network between nodes",
    "pipeline": "bound by the pipeline's bubble",
}


def print_plan(plan: Plan) -> None:
    """Print everything that a person would ask of a plan."""
    screen = console()
    for section in (_head, _model, _cost, _step, _memory, _why, _layout, _rules, _warnings):
        section(plan, screen)


def print_comparison(plans: list[Plan]) -> None:
    """Print several clusters side by side, one a row, in the order given."""
    screen = console()
    workload = plans[0].workload
    screen.print(
        title(
            f"{plans[0].architecture.name}: {len(plans)} clusters",
            f"batch {format_count(workload.batch_tokens)} tokens = "
            f"{workload.batch_sequences:,} x {workload.sequence_length:,}",
        )
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    for name in ("cluster", "chips", "layout", "bound", "step", "MFU", "memory", "days", "USD"):
        table.add_column(name, justify="left" if name in {"cluster", "layout"} else "right")
    for plan in plans:
        table.add_row(*_compared(plan))
    screen.print(table)
    for plan in plans:
        if not plan.fits:
            screen.print(f"! {plan.cluster.name}: {_why_not(plan)}", style=WARN)
    screen.print("MFU: 6N, predicted. USD: on-demand list price of the chips used.", style=QUIET)


def _compared(plan: Plan) -> tuple[str, ...]:
    e = plan.estimate
    return (
        plan.choice.cluster.name,
        f"{plan.layout.chips_used:,}",
        str(plan.layout) if plan.fits else "does not fit",
        e.bound,
        format_seconds(e.step_seconds),
        f"{e.mfu:.1%}",
        f"{plan.memory.total / plan.memory.usable:.0%}",
        f"{e.train_days:,.1f}" if e.train_days is not None else "-",
        f"{e.cost_usd:,.0f}" if e.cost_usd is not None else "-",
    )


def _why_not(plan: Plan) -> str:
    return next(line for line in plan.warnings if line.startswith("does not fit"))


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
    e, layout = plan.estimate, plan.layout
    text = Text(f"fits, {BOUNDS[e.bound]}", style=GOOD if e.bound == "compute" else WARN)
    where = "" if plan.choice.cluster == plan.cluster else f" on {plan.choice.cluster.name}"
    return text.append(
        f": {layout}{where}, remat {plan.workload.remat}{_pieces(layout)}; "
        f"{'assumed' if e.assumed else 'predicted'} step {format_seconds(e.step_seconds)}, "
        f"MFU {e.mfu:.1%} (6N)",
        style="default",
    )


def _pieces(layout: Layout) -> str:
    parts = []
    if layout.microbatches > 1:
        parts.append(f"{layout.microbatches} microbatches")
    if layout.virtual_stages > 1:
        parts.append(f"{layout.virtual_stages} virtual stages")
    return "".join(f", {part}" for part in parts)


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
    table.add_row("parameters", format_count(params.trainable), _tied(plan))
    if params.active != params.trainable:
        table.add_row("", format_count(params.active), "active: what one token meets")
    for key, value in a.filled_in:
        table.add_row("filled in", key, f"absent, so its class's default: {json.dumps(value)}")
    screen.print(table)
    screen.print()


def _tied(plan: Plan) -> str:
    return "trainable; head tied" if plan.architecture.tied_embeddings else "trainable"


def _cost(plan: Plan, screen: Console) -> None:
    e, w = plan.estimate, plan.workload
    convention = "6N: 6 x active parameters" if plan.architecture.experts else "6N: 6 x parameters"
    how = f"at an assumed MFU of {e.mfu:.1%} (6N)" if e.assumed else "at the predicted step time"
    screen.print(title("Cost", f"{how} on {e.chips:,} chips"))
    table = facts_table()
    table.add_row("FLOPs per token", format_flops(e.flops_per_token), convention)
    table.add_row(
        "", format_flops(e.flops.model_per_token), "every matmul, forward and backward, causal"
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
        f"{format_seconds(e.at_peak_seconds)} at peak; "
        f"{e.tokens_per_second_per_chip:,.0f} tokens/s a chip",
    )
    table.add_row("MFU", f"{e.mfu:.1%}", f"6N; {e.mfu_causal:.1%} of every matmul, causal")
    if e.train_flops is not None and e.train_seconds is not None:
        table.add_row("run", format_flops(e.train_flops), f"{w.steps or 0:,.0f} steps")
        table.add_row("", format_seconds(e.train_seconds), f"{_years(plan)} on one chip at peak")
        table.add_row("", f"{e.chip_hours or 0:,.0f}", f"chip-hours, of {e.chips:,} chips")
        table.add_row("", *_price(plan))
    screen.print(table)
    screen.print()


def _years(plan: Plan) -> str:
    seconds = (plan.estimate.train_flops or 0) / plan.cluster.chip.bf16_flops
    return format_seconds(seconds)


def _price(plan: Plan) -> tuple[str, str]:
    price = plan.cluster.chip.price_usd_per_hour
    if price is None or plan.estimate.cost_usd is None:
        return "-", f"no list price of {plan.cluster.chip.id} is known"
    return f"${plan.estimate.cost_usd:,.0f}", f"at ${price:.2f} a chip-hour on demand"


STEP_TERMS = {
    "compute": ("math", "matmuls and attention, with what is computed again"),
    "hbm": ("HBM", "norms, activations, loss, optimizer: bytes through HBM"),
    "fsdp": ("fsdp", "weights gathered, gradients scattered"),
    "tensor": ("tensor", "activations between tensor-parallel chips"),
    "sequence": ("sequence", "keys and values"),
    "expert": ("expert", "tokens to experts and back"),
    "data": ("data", "gradients between replicas"),
    "dcn": ("dcn", "gradients between slices"),
    "bubble": ("bubble", "pipeline"),
    "host": ("host", "offload, and waiting for the slowest host"),
}


def _step(plan: Plan, screen: Console) -> None:
    step = plan.choice.step
    screen.print(title("Step", "predicted, term by term; of traffic only what does not hide"))
    table = facts_table()
    for term, (label, remark) in STEP_TERMS.items():
        seconds = getattr(step, term)
        raw = getattr(step.traffic, term, 0.0)
        if not seconds and not raw:
            continue
        hidden = f" ({format_seconds(raw)} in all)" if raw > seconds else ""
        cells = Text(bar(seconds / step.total, 24), style="cyan")
        table.add_row(label, format_seconds(seconds), cells.append(f" {remark}{hidden}", QUIET))
    table.add_row("total", format_seconds(step.total), "")
    screen.print(table)
    screen.print()


def _why(plan: Plan, screen: Console) -> None:
    screen.print(title("Why", f"the best of {plan.examined:,} predicted steps"))
    _listed(plan.reasons, "-", QUIET, screen)


def _memory(plan: Plan, screen: Console) -> None:
    memory = plan.memory
    w = plan.workload
    screen.print(
        title(
            "Memory",
            f"{_which_chip(plan)}, of {format_bytes(memory.usable)}; {w.param_dtype} parameters, "
            f"{'' if w.master_copy else 'no '}f32 master, {w.optimizer_dtype} moments",
        )
    )
    remarks = {
        "parameters": (memory.params, f"over {_state_ways(plan)}"),
        "gradients": (memory.gradients, ""),
        "optimizer": (memory.optimizer, "two moments"),
        "activations": (memory.activations, f"remat {w.remat}, {_in_flight(plan)}"),
        "recomputed": (memory.workspace, "what one layer's backward pass makes again"),
        "logits": (memory.logits, "of one microbatch, with the loss"),
        "gathered": (memory.gathered, "weights of the layers in use and on their way"),
        "reserve": (memory.reserve, "runtime, communication buffers, fragmentation"),
        "total": (memory.total, f"{memory.total / memory.usable:.0%} of usable"),
    }
    table = facts_table()
    for name, (size, remark) in remarks.items():
        if not size:
            continue
        cells = Text(bar(size / memory.usable, 24), style=BAD if size > memory.usable else "cyan")
        table.add_row(name, format_bytes(size), cells.append(f" {remark}", style=QUIET))
    screen.print(table)
    screen.print()


def _which_chip(plan: Plan) -> str:
    return f"per chip of stage {plan.memory.stage}" if plan.layout.stage > 1 else "per chip"


def _state_ways(plan: Plan) -> str:
    ways = plan.layout.weight_shards * plan.layout.tensor * plan.layout.stage
    return f"{ways:,} chips" if ways > 1 else "one chip"


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
    screen.print(title("Alternatives", "predicted, best first"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    for name in ("", "layout", "chips", "remat", "step", "memory", ""):
        table.add_column(name, justify="left" if name in {"", "layout", "remat"} else "right")
    table.add_row("->", *_row(plan, plan.choice))
    for other in plan.alternatives:
        table.add_row("", *_row(plan, other), style=QUIET)
    screen.print(table)
    screen.print()


def _row(plan: Plan, choice: Choice) -> tuple[str, ...]:
    slower = choice.seconds / plan.choice.seconds - 1
    return (
        f"{choice.layout}{_pieces(choice.layout)}",
        f"{choice.layout.chips_used:,}",
        choice.remat.value,
        format_seconds(choice.seconds),
        format_bytes(choice.memory.total),
        f"{slower:+.1%}" if choice is not plan.choice else "",
    )


def _warnings(plan: Plan, screen: Console) -> None:
    if plan.warnings:
        screen.print(title("Warnings"))
        _listed(plan.warnings, "!", WARN, screen)


def _listed(lines: tuple[str, ...], mark: str, style: str, screen: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style=style)
    table.add_column(ratio=1)
    for line in lines:
        table.add_row(mark, line)
    screen.print(table)
    screen.print()
