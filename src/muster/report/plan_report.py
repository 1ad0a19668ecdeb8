"""`muster plan` on a terminal: model, cost, memory, rules, layout, warnings."""

import json

from rich.console import Console
from rich.text import Text

from muster.planner.plan import Plan
from muster.planner.search import Choice, Minimize
from muster.report.columns import Column, shown
from muster.report.rules_text import condition, legend
from muster.report.terminal import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Grid,
    bar,
    bar_width,
    console,
    facts_table,
    keep_together,
    title,
)
from muster.report.trust import error_words, shortage, warnings_of
from muster.report.words import (
    BOUNDS,
    STEP_TERMS,
    VIRTUAL_STAGES,
    WHOLE_LAYER,
    counted,
    layout_text,
    pieces,
    remat_text,
    term_text,
    training_lines,
)
from muster.roofline.flops import training_flops
from muster.roofline.remat import Remat
from muster.roofline.software import default_software
from muster.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_si,
)


def print_plan(plan: Plan, *, minimize: Minimize = "time") -> None:
    """Print everything that a person would ask of a plan.

    Args:
        plan: what to print.
        minimize: what its search took the least of.
    """
    screen = console()
    for section in (_head, _model, _cost, _step, _memory, _why):
        section(plan, screen)
    _layouts(plan, minimize, screen)
    for section in (_training, _rules, _warnings):
        section(plan, screen)


def _head(plan: Plan, screen: Console) -> None:
    workload = plan.workload
    run = f", {format_si(workload.train_tokens)} tokens" if workload.train_tokens else ""
    screen.print(
        title(
            f"{plan.architecture.name} on {plan.cluster.name}",
            f"{counted(plan.cluster.chips, 'chip')}; batch "
            f"{format_count(workload.batch_tokens)} tokens = "
            f"{workload.batch_sequences:,} x {workload.sequence_length:,}{run}",
        )
    )
    screen.print(keep_together(_verdict(plan)))
    if plan.fits and plan.layout.virtual_stages > 1:
        screen.print(Text(VIRTUAL_STAGES, style=QUIET))
    screen.print()


def _verdict(plan: Plan) -> Text:
    if not plan.fits:
        return _refusal(plan)
    e, layout = plan.estimate, plan.layout
    fits = "fits" if plan.choice.roomy else f"fits with {_room(plan)} of memory to spare"
    text = Text(f"{fits}, {BOUNDS[e.bound]}", style=GOOD if e.bound == "compute" else WARN)
    where = "" if plan.choice.cluster == plan.cluster else f" on {plan.choice.cluster.name}"
    return text.append(
        f": {layout}{where}, remat {plan.workload.remat}{pieces(layout)}; "
        f"{'assumed' if e.assumed else 'predicted'} step {format_seconds(e.step_seconds)}, "
        f"MFU {e.mfu:.1%} (6N)",
        style="default",
    )


def _room(plan: Plan) -> str:
    return f"{1 - plan.memory.total / plan.memory.usable:.0%}"


def _refusal(plan: Plan) -> Text:
    """By how much it does not fit, and first of all the nearest change that does."""
    short, nearest = shortage(plan)
    text = Text(f"does not fit: {short}", style=BAD)
    if nearest:
        text.append("\nfits ", style=GOOD).append(nearest, style="default")
    return text


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
    table.add_cells("parameters", format_count(params.trainable), _tied(plan))
    if params.active != params.trainable:
        table.add_cells("", format_count(params.active), "active: what one token meets")
    for key, value in a.filled_in:
        table.add_cells("filled in", key, f"absent, so its class's default: {json.dumps(value)}")
    screen.print(table)
    screen.print()


def _tied(plan: Plan) -> str:
    return "trainable; head tied" if plan.architecture.tied_embeddings else "trainable"


def _cost(plan: Plan, screen: Console) -> None:
    e, w = plan.estimate, plan.workload
    convention = "6N: 6 x active parameters" if plan.architecture.experts else "6N: 6 x parameters"
    how = f"at an assumed MFU of {e.mfu:.1%} (6N)" if e.assumed else "at the predicted step time"
    if_it_fitted = "" if plan.fits else ", if it did fit"
    screen.print(title("Cost", f"{how} on {counted(e.chips, 'chip')}{if_it_fitted}"))
    table = facts_table()
    table.add_cells("FLOPs per token", format_flops(e.flops_per_token), convention)
    table.add_cells(
        "", format_flops(e.flops.model_per_token), "every matmul, forward and backward, causal"
    )
    again = _recomputed(plan)
    if again:
        table.add_cells("", format_flops(again), f"computed again: remat {_remat(plan)}")
    for missing in e.flops.not_counted:
        table.add_cells("", "not counted", missing)
    table.add_cells("FLOPs per step", format_flops(e.flops_per_step), "6N x batch")
    table.add_cells(
        "step",
        format_seconds(e.step_seconds),
        f"{format_seconds(e.at_peak_seconds)} at peak; "
        f"{e.tokens_per_second_per_chip:,.0f} tokens/s a chip",
    )
    table.add_cells("MFU", f"{e.mfu:.1%}", f"6N; {e.mfu_causal:.1%} of every matmul, causal")
    if e.train_flops is not None and e.train_seconds is not None:
        table.add_cells("run", format_flops(e.train_flops), f"{w.steps or 0:,.0f} steps")
        alone = f"{_years(plan)} on one chip at peak"
        table.add_cells("", format_seconds(e.train_seconds), f"without failures; {alone}")
        hours = f"chip-hours, of {counted(e.chips, 'chip')}"
        table.add_cells("", f"{e.chip_hours or 0:,.0f}", hours)
        table.add_cells("", *_price(plan))
    screen.print(table)
    screen.print()


def _recomputed(plan: Plan) -> float:
    """FLOPs a token that run again, whole layers of them where the chip's software does that."""
    remat = plan.choice.remat
    if remat is Remat.OUTPUTS and default_software(plan.cluster.chip).whole_layer:
        remat = Remat.FULL
    length = plan.workload.sequence_length
    flops = training_flops(plan.architecture, length, causal=True, remat=remat)
    return flops.recompute / length


def _remat(plan: Plan) -> str:
    """The policy, and that it stands for another on this chip."""
    remat, text = plan.choice.remat, remat_text(plan.choice.remat, plan.cluster.chip)
    if text != WHOLE_LAYER:
        return remat.value
    return f"{remat.value}, {text}"


def _years(plan: Plan) -> str:
    seconds = (plan.estimate.train_flops or 0) / plan.cluster.chip.bf16_flops
    return format_seconds(seconds)


def _price(plan: Plan) -> tuple[str, str]:
    price = plan.cluster.chip.price_usd_per_hour
    if price is None or plan.estimate.cost_usd is None:
        return "-", f"no list price of {plan.cluster.chip.id} is known"
    return f"${plan.estimate.cost_usd:,.0f}", f"at ${price:.2f} a chip-hour on demand"


def _step(plan: Plan, screen: Console) -> None:
    step = plan.choice.step
    if_it_fitted = "" if plan.fits else " if it did fit"
    screen.print(
        title("Step", f"predicted{if_it_fitted}, term by term; of traffic only what does not hide")
    )
    table = facts_table()
    for term in STEP_TERMS:
        label, remark = term_text(term, plan.choice)
        seconds = getattr(step, term)
        raw = getattr(step.traffic, term, 0.0)
        if not seconds and not raw:
            continue
        all_of_it = "" if seconds else ", hidden"
        hidden = f" ({format_seconds(raw)} in all{all_of_it})" if raw > seconds else ""
        cells = Text(bar(seconds / step.total, bar_width()), style="cyan")
        table.add_cells(label, format_seconds(seconds), cells.append(f" {remark}{hidden}", QUIET))
    table.add_cells("total", format_seconds(step.total), "")
    error, basis = error_words(plan.cluster.chip.id, plan.architecture)
    table.add_cells("expected error", error, basis)
    screen.print(table)
    screen.print()


def _why(plan: Plan, screen: Console) -> None:
    screen.print(title("Why", f"the best of {counted(plan.examined, 'predicted step')}"))
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
        "optimizer": (memory.optimizer, _moments(plan)),
        "activations": (
            memory.activations,
            f"{_in_flight(plan)}; remat {w.remat}: "
            f"{remat_text(plan.choice.remat, plan.cluster.chip)}",
        ),
        "recomputed": (memory.workspace, "what one layer's backward pass makes again"),
        "logits": (memory.logits, _logits(plan)),
        "gathered": (memory.gathered, "weights of the layers in use and on their way"),
        "reserve": (memory.reserve, "runtime, communication buffers, fragmentation"),
        "total": (memory.total, f"{memory.total / memory.usable:.0%} of usable"),
    }
    table = facts_table()
    for name, (size, remark) in remarks.items():
        if not size:
            continue
        cells = Text(
            bar(size / memory.usable, bar_width()), style=BAD if size > memory.usable else "cyan"
        )
        table.add_cells(name, format_bytes(size), cells.append(f" {remark}", style=QUIET))
    if memory.host:
        table.add_cells("host", format_bytes(memory.host), "a chip: what waits in its host's RAM")
    screen.print(table)
    screen.print()


def _logits(plan: Plan) -> str:
    """What the logits' memory is; of what may lie where recomputed arrays do, the rest alone."""
    reused = plan.memory.workspace and default_software(plan.cluster.chip).reuses_buffers
    rest = "; what of them does not lie where the recomputed do" if reused else ""
    return f"of one microbatch, with the head's gradient{rest}"


def _which_chip(plan: Plan) -> str:
    return f"per chip of stage {plan.memory.stage}" if plan.layout.stage > 1 else "per chip"


def _state_ways(plan: Plan) -> str:
    ways = plan.layout.weight_shards * plan.layout.tensor * plan.layout.stage
    return f"{ways:,} chips" if ways > 1 else "one chip"


def _moments(plan: Plan) -> str:
    """Over what the optimizer's state is split: its own ways beside the weights', as in ZeRO-1."""
    layout = plan.layout
    master = " and the f32 master" if plan.workload.master_copy else ""
    if not layout.shards_optimizer or layout.data == 1:
        return f"two moments{master}"
    return f"two moments{master}, also split over the replicas (ZeRO-1)"


def _in_flight(plan: Plan) -> str:
    parts = plan.layout.microbatches
    return "the whole batch at once" if parts == 1 else f"{parts} microbatches"


def _training(plan: Plan, screen: Console) -> None:
    lines = training_lines(plan)
    if not lines:
        return
    screen.print(title("Training"))
    for line in lines:
        screen.print(Text(line))
    screen.print()


def _rules(plan: Plan, screen: Console) -> None:
    screen.print(title("Rules of thumb", "the scaling book's, with this plan's numbers"))
    table = Grid()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for rule in plan.rules:
        numbers, answer = condition(rule)
        style = {"yes": GOOD, "no": BAD}.get(answer, QUIET)
        table.add_cells(numbers, Text(answer, style=style), rule.statement)
    screen.print(table)
    screen.print(keep_together(Text("; ".join(legend(plan.rules)), style=QUIET)))
    screen.print()


LAYOUT_COLUMNS = (
    Column("mark"),
    Column("layout", left=True, folds=True),
    Column("chips", rank=2),
    Column("remat", left=True, rank=3),
    Column("step"),
    Column("memory", rank=1),
    Column("cost"),
    Column("slower"),
)


def _layouts(plan: Plan, minimize: Minimize, screen: Console) -> None:
    screen.print(title("Alternatives", f"predicted, best first{_by(minimize)}"))
    columns = [each for each in LAYOUT_COLUMNS if each.name != "cost" or minimize == "cost"]
    rows = [_row(plan, choice, minimize) for choice in (plan.choice, *plan.alternatives)]
    headings = {"mark": "", "slower": "", "cost": _cost_heading(plan)}
    styles = [None, *[QUIET] * len(plan.alternatives)]
    screen.print(shown(columns, rows, headings=headings, styles=styles))
    screen.print()


def _by(minimize: Minimize) -> str:
    return {"time": "", "cost": " by cost", "chips": " by chips"}[minimize]


def _cost_heading(plan: Plan) -> str:
    if plan.workload.steps is None:
        return "chip-s a step"
    return "chip-hours" if plan.cluster.chip.price_usd_per_hour is None else "USD"


def _cost_of(plan: Plan, choice: Choice) -> float:
    """In the unit of the heading."""
    seconds = choice.seconds * choice.layout.chips_used
    if plan.workload.steps is None:
        return seconds
    return seconds * plan.workload.steps / 3600 * (plan.cluster.chip.price_usd_per_hour or 1.0)


def _row(plan: Plan, choice: Choice, minimize: Minimize) -> dict[str, str | Text]:
    best, each = plan.choice.seconds, choice.seconds
    if minimize == "cost":
        best, each = _cost_of(plan, plan.choice), _cost_of(plan, choice)
    return {
        "mark": "->" if choice is plan.choice else "",
        "layout": layout_text(choice.layout),
        "chips": f"{choice.layout.chips_used:,}",
        "remat": choice.remat.value,
        "step": format_seconds(choice.seconds),
        "memory": format_bytes(choice.memory.total),
        "cost": f"{_cost_of(plan, choice):,.0f}",
        "slower": f"{each / best - 1:+.1%}" if choice is not plan.choice else "",
    }


def _warnings(plan: Plan, screen: Console) -> None:
    lines = warnings_of(plan)
    if lines:
        screen.print(title("Warnings"))
        _listed(lines, "!", WARN, screen)


def _listed(lines: tuple[str, ...], mark: str, style: str, screen: Console) -> None:
    table = Grid(gap=1)
    table.add_column(no_wrap=True, style=style)
    table.add_column(ratio=1)
    for line in lines:
        table.add_cells(mark, line)
    screen.print(table)
    screen.print()
