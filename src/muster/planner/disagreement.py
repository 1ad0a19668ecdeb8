"""Where the book's rules and the step model part, with the plan's numbers that explain it."""

from collections.abc import Iterator, Sequence

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.binding import bound_of
from muster.planner.choice import Choice
from muster.planner.differences import TRAFFIC
from muster.planner.rules import Rule
from muster.planner.sizes import chips_text
from muster.roofline.flops import six_n
from muster.roofline.mfu import active_params
from muster.roofline.workload import Workload
from muster.units import format_bytes, format_seconds


def mixed_rule(rules: Sequence[Rule]) -> Rule | None:
    """The rule of tokens a chip from which traffic can hide at the best split."""
    by_id = {rule.id: rule for rule in rules}
    return by_id.get("fsdp-tensor") or by_id.get("fsdp")


def disagreements(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    rules: Sequence[Rule],
) -> Iterator[str]:
    """Every rule that says otherwise than the step model, and why."""
    rule = mixed_rule(rules)
    bound = bound_of(choice.cluster, choice)
    if rule and rule.bound is not None and rule.holds is not (bound == "compute"):
        says = "compute-bound" if rule.holds else "bound by communication"
        why = "; ".join(_why(architecture, cluster, workload, choice))
        yield (
            f"the book's rule calls it {says} ({rule.value:,.0f} against {rule.bound:,.0f} tokens "
            f"a chip), the step model bound by {bound}: {why}"
        )
    fewest = next((rule for rule in rules if rule.id == "fewest-chips"), None)
    if fewest and fewest.holds is not choice.memory.fits:
        yield _memory(fewest, choice)


def _why(
    architecture: Architecture, cluster: Cluster, workload: Workload, choice: Choice
) -> Iterator[str]:
    """The numbers of this layout that the rule does not have."""
    step, layout = choice.step, choice.layout
    traffic = {name: getattr(step.traffic, name) for name in TRAFFIC}
    slowest = max(traffic, key=traffic.__getitem__)
    flops = six_n(active_params(architecture)).total * workload.batch_tokens
    at_peak = flops / (layout.chips_used * cluster.chip.bf16_flops)
    yield (
        f"math is busy {format_seconds(step.compute)} (at peak {format_seconds(at_peak)}), "
        f"{TRAFFIC[slowest]} {format_seconds(traffic[slowest])}"
    )
    m, ways = layout.microbatches, layout.fsdp * layout.sequence
    if layout.stage > 1:
        yield f"its {layout.stage} stages keep their weights, and the rule is of gathering them"
        if step.bubble > 0.01 * step.total:
            yield f"it does not know of the pipeline's {format_seconds(step.bubble)} of waiting"
    elif not traffic["fsdp"]:
        yield "no weights are gathered here, and the rule is of gathering them"
    elif m > 1 and ways > 1:
        tokens = workload.batch_tokens / layout.chips_used / m
        yield f"weights are gathered for each of {m} microbatches of {tokens:,.0f} tokens a chip"
    if traffic["expert"]:
        yield "the rule does not know of the tokens' way to their experts"
    if layout.chips_used < cluster.chips:
        idle = cluster.chips - layout.chips_used
        yield f"{idle:,} of {cluster.chips:,} chips have no work"


def _memory(rule: Rule, choice: Choice) -> str:
    memory, m = choice.memory, choice.layout.microbatches
    assert rule.bound is not None
    kept = {
        "activations": memory.activations,
        "what is computed again": memory.workspace,
        "logits": memory.logits,
        "gathered weights": memory.gathered,
        "reserve": memory.reserve,
    }
    asks = f"the book's rule asks for {chips_text(round(rule.bound))}"
    if memory.fits:
        host = f" and {format_bytes(memory.host)} on its host" if memory.host else ""
        return (
            f"{asks}, and it fits on {choice.layout.chips_used:,}: the rule keeps 2 checkpoints a "
            f"layer of the whole batch, this plan "
            f"{format_bytes(memory.activations)} a chip of activations{host}, with remat "
            f"{choice.remat} and {m} microbatch{'' if m == 1 else 'es'}"
        )
    largest = sorted((name for name in kept if kept[name]), key=lambda name: -kept[name])[:2]
    named = " and ".join(f"{format_bytes(kept[name])} of {name}" for name in largest)
    return f"{asks} only: it splits everything evenly over them, and each chip has {named} besides"
