"""Arrays that are whole where they could be split, and work done again where memory is to spare."""

from collections.abc import Iterator

from muster.proof.findings.finding import Finding, Seen
from muster.proof.names import direction, words
from muster.roofline.memory import dtype_bytes
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_memory import step_memory
from muster.roofline.step_model import StepModel
from muster.sharding.rules import padded_table
from muster.units import format_bytes

LARGE = 64 * 1024**2
# An array that takes this much of HBM by itself is worth a line.
LARGE_SHARE = 0.02
# What the plan's own count of memory may be wrong by, when it says what else would fit.
CERTAIN = 0.95
# From the one that computes least again on.
BY_LESS_AGAIN = (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS)
_PARAMS = "state.params["
_NAMED = 3


def replicated(step: Seen) -> Iterator[Finding]:
    """Weights that the program holds whole on every device, though the mesh could split them."""
    if step.planned is None or not set(step.mesh) - {"data", "slice", "stage"}:
        return
    planned = step.planned
    weights = {each.name: each for each in padded_table(planned.architecture, planned.layout)}
    each_number = dtype_bytes(planned.workload.param_dtype)
    for argument in step.program.main.parameters.values():
        weight = weights.get(_weight_name(argument.op_name))
        if weight is None or argument.shape.numbers != weight.count:
            continue
        if weight.count * each_number >= LARGE:
            yield Finding(
                id="replicated",
                cost_seconds=0.0,
                what=f"{weight.name} ({format_bytes(weight.count * each_number)}) is whole on every"
                " device, and its moments with it",
                change="ways that divide its dims",
            )


def _weight_name(op_name: str) -> str:
    r"""Read the name of a weight in an argument's.

    >>> _weight_name("state.params[\\'layers.mlp.up\\']")
    'layers.mlp.up'
    """
    if not op_name.startswith(_PARAMS):
        return ""
    return op_name.removeprefix(_PARAMS).strip("]").strip("\\'\"")


def made_whole(step: Seen) -> Iterator[Finding]:
    """Arrays that a collective over the whole mesh leaves on every device, if they are large."""
    everything = {axis for axis in step.mesh if axis not in {"slice", "stage", "data"}}
    if not everything:
        return
    largest: dict[str, int] = {}
    for _, each in step.collectives:
        axes = {axis for axis in each.axes if ":" not in axis}
        if each.kind not in {"all-gather", "all-reduce"} or not everything <= axes:
            continue
        if each.array_bytes >= max(LARGE, LARGE_SHARE * step.usable):
            name = words(each.op_name) or each.kind
            largest[name] = max(largest.get(name, 0), each.array_bytes)
    if not largest:
        return
    named = sorted(largest.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} ({format_bytes(size)})" for name, size in named[:_NAMED])
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    yield Finding(
        id="whole-array",
        cost_seconds=0.0,
        what=f"whole on every device for a while: {listed}{more}; of HBM the largest takes "
        f"{named[0][1] / step.usable:.0%}",
        change="`tensor` ways, which split it where it is used; or the work on it in chunks",
    )


def spare_memory(step: Seen) -> Iterator[Finding]:
    """Recomputation that memory to spare makes unnecessary, by the plan's own count of policies."""
    planned, memory = step.planned, step.memory
    if planned is None or memory is None or planned.remat is Remat.NONE:
        return
    kept = _policy_that_fits(step)
    again = sum(
        step.seconds(visit)
        for visit in step.visits
        if visit.op.estimated_cycles and direction(step.program.op_name(visit.op)) == "recompute"
    )
    if kept is not None and again:
        spare = 1 - memory.total / memory.usable
        yield Finding(
            id="spare-memory",
            cost_seconds=again,
            what=f"{spare:.0%} of HBM is free while `{planned.remat.value}` computes again",
            change=f"--remat {kept.value}, which would fit by the plan's count",
        )


def _policy_that_fits(step: Seen) -> Remat | None:
    """The policy that keeps most of those that fit into what is free."""
    planned, memory = step.planned, step.memory
    assert planned is not None
    assert memory is not None
    model = StepModel(planned.architecture, planned.cluster, planned.workload)
    share = 1 / planned.cluster.chip.devices_per_chip

    def total(remat: Remat) -> float:
        policy = remat_policy(remat, whole_layer=model.software.whole_layer)
        return share * step_memory(model, planned.layout, policy).total

    now = total(planned.remat)
    for remat in BY_LESS_AGAIN:
        if remat is planned.remat:
            return None
        if memory.total + total(remat) - now <= CERTAIN * memory.usable:
            return remat
    return None
