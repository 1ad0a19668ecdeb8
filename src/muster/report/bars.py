"""Bars of the HTML page: memory against the chip's limit, and the step as a waterfall."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.planner.plan import Plan
from muster.report.words import STEP_TERMS, term_text
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import default_software
from muster.roofline.step_memory import StepMemory, stage_memory, step_memory
from muster.roofline.step_time import StepModel
from muster.units import format_bytes, format_seconds

# Parts of memory: field of StepMemory, label, what it is.
PARTS = (
    ("params", "parameters", "as they are kept between steps"),
    ("gradients", "gradients", "of this chip's parameters"),
    ("optimizer", "optimizer", "moments, and the master copy where there is one"),
    ("activations", "activations", "kept for the backward pass"),
    ("workspace", "recomputed", "what one layer's backward pass makes again"),
    ("logits", "logits", "of one microbatch; head gradient"),
    ("gathered", "gathered", "weights of the layers in use and on their way"),
    ("reserve", "reserve", "runtime, communication buffers, fragmentation"),
)
HEADROOM = 1.04


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A piece of a bar, in percent of the picture's width."""

    part: str
    label: str
    size: str
    share: str
    start: float
    width: float
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stacked bar."""

    label: str
    remark: str
    total: str
    fits: bool
    chosen: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryBars:
    """Stacked bars on one scale, with the chip's limit across them all."""

    stacks: tuple[Stack, ...]
    limit: float
    limit_label: str
    parts: tuple[Segment, ...]
    total: str
    share: str
    alt: str


def memory_bars(plan: Plan) -> MemoryBars:
    """The plan's memory, then the same layout under other policies and in other stages."""
    memory = plan.memory
    rows = [_Row(_own_label(plan), "", memory, chosen=True), *_stages(plan), *_policies(plan)]
    scale = HEADROOM * max(memory.usable, *(row.memory.total for row in rows))
    parts = _segments(memory, scale)
    share = f"{memory.total / memory.usable:.0%}"
    heaviest = sorted(parts, key=lambda part: -part.width)[:3]
    return MemoryBars(
        stacks=tuple(_stack(row, scale) for row in rows),
        limit=round(100 * memory.usable / scale, 2),
        limit_label=f"{format_bytes(memory.usable)} usable",
        parts=parts,
        total=format_bytes(memory.total),
        share=share,
        alt=(
            f"Memory of one chip: {format_bytes(memory.total)} of {format_bytes(memory.usable)} "
            f"usable, {share}. Largest: "
            + ", ".join(f"{part.label} {part.size}" for part in heaviest)
        ),
    )


@dataclass(frozen=True)
class _Row:
    label: str
    remark: str
    memory: StepMemory
    chosen: bool = False


def _own_label(plan: Plan) -> str:
    where = f", stage {plan.memory.stage}" if plan.layout.stage > 1 else ""
    return f"remat {plan.choice.remat.value}{where}"


def _stages(plan: Plan) -> Iterator[_Row]:
    """The other ends of the pipeline."""
    model, software = _model(plan)
    policy = remat_policy(plan.choice.remat, whole_layer=software)
    for stage in dict.fromkeys((0, 1, plan.layout.stage - 1)):
        if plan.layout.stage > 1 and stage != plan.memory.stage:
            memory = stage_memory(model, plan.layout, policy, stage)
            yield _Row(f"remat {plan.choice.remat.value}, stage {stage}", "", memory)


def _policies(plan: Plan) -> Iterator[_Row]:
    """The same layout with more or less computed again, and what its step takes then.

    Policies that compute the same again are one bar.
    """
    model, whole_layer = _model(plan)
    names: dict[RematPolicy, list[str]] = {}
    for remat in Remat:
        policy = remat_policy(remat, whole_layer=whole_layer)
        names.setdefault(replace(policy, name=""), []).append(remat.value)
    for policy, same in names.items():
        if plan.choice.remat.value in same or (
            Remat.OFFLOAD.value in same and plan.cluster.chip.kind != "tpu"
        ):
            continue
        seconds = model.step(plan.layout, policy).total
        memory = step_memory(model, plan.layout, policy)
        change = seconds / plan.choice.seconds - 1
        yield _Row(f"remat {' or '.join(same)}", f"step {change:+.1%}", memory)


def _model(plan: Plan) -> tuple[StepModel, bool]:
    cluster = plan.choice.cluster
    model = StepModel(plan.architecture, cluster, plan.workload)
    return model, default_software(cluster.chip).whole_layer


def _stack(row: _Row, scale: float) -> Stack:
    return Stack(
        label=row.label,
        remark=row.remark,
        total=format_bytes(row.memory.total),
        fits=row.memory.fits,
        chosen=row.chosen,
        segments=_segments(row.memory, scale),
    )


def _segments(memory: StepMemory, scale: float) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0.0
    for field, label, remark in PARTS:
        size = getattr(memory, field)
        if not size:
            continue
        segments.append(
            Segment(
                part=field,
                label=label,
                size=format_bytes(size),
                share=f"{size / memory.usable:.1%}",
                start=round(100 * start / scale, 3),
                width=round(100 * size / scale, 3),
                remark=remark,
            )
        )
        start += size
    return tuple(segments)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One step of the waterfall, in percent of the step.

    Attributes:
        hidden: what runs behind earlier terms, to the left of where the term starts.
    """

    name: str
    label: str
    remark: str
    seconds: str
    share: str
    start: float
    width: float
    hidden_start: float
    hidden: float
    hidden_seconds: str


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """The step's terms, one after the other."""

    terms: tuple[Term, ...]
    total: str
    alt: str


def waterfall(plan: Plan) -> Waterfall:
    """The predicted step: each term starts where the one before ended."""
    step = plan.choice.step
    terms: list[Term] = []
    start = 0.0
    for name in STEP_TERMS:
        label, remark = term_text(name, plan.choice)
        seconds = getattr(step, name)
        behind = max(0.0, getattr(step.traffic, name, 0.0) - seconds)
        if not seconds and not behind:
            continue
        shown = min(behind, start)
        terms.append(
            Term(
                name=name,
                label=label,
                remark=remark,
                seconds=format_seconds(seconds),
                share=f"{seconds / step.total:.1%}",
                start=round(100 * start / step.total, 3),
                width=round(100 * seconds / step.total, 3),
                hidden_start=round(100 * (start - shown) / step.total, 3),
                hidden=round(100 * shown / step.total, 3),
                hidden_seconds=format_seconds(behind) if behind else "",
            )
        )
        start += seconds
    spoken = ", ".join(
        f"{term.label} {term.seconds}"
        + (f" and {term.hidden_seconds} hidden" if term.hidden else "")
        for term in terms
    )
    total = format_seconds(step.total)
    return Waterfall(terms=tuple(terms), total=total, alt=f"A step of {total}: {spoken}")
