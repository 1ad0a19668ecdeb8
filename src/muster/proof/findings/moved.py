"""Arrays that are moved for no work of their own: laid out anew, or to the host and back."""

from collections.abc import Iterator

from muster.proof.costs import COPY
from muster.proof.findings.finding import Finding, Seen, sources
from muster.proof.hlo import Visit
from muster.proof.hlo.kinds import MEGASCALE, collective_inside, is_dma, is_transfer
from muster.proof.hlo.shape import HOST
from muster.roofline.remat import Remat
from muster.units import format_bytes

_COPIES = frozenset({"copy", "transpose"})
_GATHERS = frozenset({"all-gather", "all-reduce", "collective-permute"})


def laid_out_anew(step: Seen) -> Iterator[Finding]:
    """Copies of the main core: of what a gather brought, and of anything else."""
    after, other = 0.0, 0.0
    for visit in step.visits:
        if visit.op.opcode not in _COPIES or not visit.op.estimated_cycles:
            continue
        if _was_gathered(step, visit):
            after += step.seconds(visit)
        else:
            other += step.seconds(visit)
    rows = _rows(step)
    if after:
        yield Finding(
            id="relayout-after-gather",
            cost_seconds=after,
            what=f"gathered arrays are laid out anew before they are used{rows}",
            change="fewer ways that shard weights, `data` above them: whole tiles stay together",
        )
    if other:
        yield Finding(
            id="relayout",
            cost_seconds=other,
            what="arrays are laid out anew in memory (copies and transposes)",
            change="the dim that a matmul contracts last in memory; one layout from end to end",
        )


def _rows(step: Seen) -> str:
    if step.planned is None or step.planned.layout.weight_shards == 1:
        return ""
    rows = step.planned.architecture.d_model / step.planned.layout.weight_shards
    return f" (a shard has {rows:g} rows of D)"


def _was_gathered(step: Seen, visit: Visit) -> bool:
    return any(
        (inner := collective_inside(step.program, source)) is not None and inner.base in _GATHERS
        for operand in visit.op.operands[:1]
        for source in sources(visit.computation, operand)
    )


def to_the_host(step: Seen) -> Iterator[Finding]:
    """Copies to the host's memory and back, and what else the host is asked for."""
    crossing = {visit.op.name: visit for visit in step.visits if _crosses(visit)}
    costs = [cost for cost in step.timeline.costs if cost.kind == COPY and cost.name in crossing]
    if costs:
        moved = sum(
            cost.count * min(array.bytes for array in crossing[cost.name].op.shape.arrays()
                             if array.numbers > 1)
            for cost in costs
        )  # fmt: skip
        said = ""
        if step.planned is not None:
            asked_for = step.planned.remat is Remat.OFFLOAD
            said = ", as planned" if asked_for else ", which the plan does not ask for"
        yield Finding(
            id="host-transfer",
            cost_seconds=sum(cost.exposed for cost in costs),
            what=f"{format_bytes(moved)} a step go to the host's memory or come back{said}: "
            "the core waits",
            change="a policy that computes more again instead (--remat minimal or outputs)",
        )
    asked = [visit for visit in step.visits if is_transfer(visit.op) and not _between(visit)]
    if asked:
        yield Finding(
            id="host-callback",
            cost_seconds=0.0,
            what=f"{sum(visit.times for visit in asked):,} exchanges with the host's own program "
            f"a step ({', '.join(sorted({visit.op.opcode for visit in asked}))}); not timed",
            change="no debugging prints or callbacks in the step",
        )


def _crosses(visit: Visit) -> bool:
    if not is_dma(visit.op):
        return False
    arrays = [array for array in visit.op.shape.arrays() if array.numbers > 1]
    return any(array.memory_space == HOST for array in arrays)


def _between(visit: Visit) -> bool:
    """Whether it is a half of what goes between slices, or only the end of something."""
    said = visit.op.attributes.get("frontend_attributes", "")
    return MEGASCALE in said or "megascale" in said or visit.op.phase == "done"
