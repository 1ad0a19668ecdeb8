"""Why this layout: what binds it, what the runner-up loses, what would change the answer."""

from collections.abc import Iterator, Sequence

from muster.hardware import Cluster
from muster.planner.closed_form import Candidate
from muster.planner.rules import Rule
from muster.planner.search import Choice
from muster.roofline.step_time import StepTime
from muster.roofline.workload import Workload
from muster.units import format_seconds, format_si

TRAFFIC = {
    "fsdp": "gathering weights and scattering gradients (FSDP)",
    "tensor": "activations between tensor-parallel chips",
    "sequence": "keys and values between pieces of a sequence",
    "expert": "tokens to their experts and back",
    "data": "gradients between replicas",
    "dcn": "gradients between slices",
}
WORK = {
    "compute": "math",
    "hbm": "elementwise work through HBM",
    "bubble": "the pipeline's bubble and its sends",
    "host": "waiting for hosts",
}
NOTABLE_SHARE = 0.002


def reasons(
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    alternatives: Sequence[Choice],
    rules: Sequence[Rule],
    closed_form: Candidate | None,
    bound: str,
) -> Iterator[str]:
    """Say it in sentences, the most important first."""
    yield _what_binds(choice)
    if alternatives:
        yield _runner_up(choice, alternatives[0])
    yield from _what_would_change_it(cluster, workload, rules)
    differs = disagreement(rules, bound)
    if differs:
        yield differs
    if closed_form is not None:
        yield from _closed_form(choice, closed_form)


def _what_binds(choice: Choice) -> str:
    step = choice.step
    traffic = {name: getattr(step.traffic, name) for name in TRAFFIC}
    slowest = max(traffic, key=traffic.__getitem__)
    line = f"math takes {step.compute / step.total:.0%} of the step"
    if not traffic[slowest]:
        return f"{line}; one chip, no traffic"
    exposed = getattr(step, slowest)
    return (
        f"{line}; the slowest traffic is {TRAFFIC[slowest]}: "
        f"{format_seconds(traffic[slowest])}, of which {format_seconds(exposed)} does not hide"
    )


def _runner_up(choice: Choice, other: Choice) -> str:
    slower = other.seconds - choice.seconds
    losses = _differences(choice.step, other.step)
    where = ", ".join(
        f"{'+' if change > 0 else '-'}{format_seconds(abs(change))} {name}"
        for name, change in losses[:3]
    )
    return (
        f"the runner-up, {other.layout}, takes {format_seconds(slower)} more "
        f"({slower / choice.seconds:.1%}): {where or 'equal in every term'}"
    )


def _differences(step: StepTime, other: StepTime) -> list[tuple[str, float]]:
    """Terms in which two steps differ noticeably, the largest first."""
    names = {name: name for name in (*TRAFFIC, *WORK)} | {"compute": "math", "hbm": "HBM"}
    found = [(label, getattr(other, name) - getattr(step, name)) for name, label in names.items()]
    notable = [pair for pair in found if abs(pair[1]) > NOTABLE_SHARE * step.total]
    return sorted(notable, key=lambda pair: -abs(pair[1]))


def _what_would_change_it(
    cluster: Cluster, workload: Workload, rules: Sequence[Rule]
) -> Iterator[str]:
    by_id = {rule.id: rule for rule in rules}
    rule = by_id.get("fsdp-tensor") or by_id.get("fsdp")
    if rule is None or rule.bound is None:
        return
    batch, chips = rule.bound * cluster.chips, workload.batch_tokens / rule.bound
    yield (
        f"by the book's rule these {cluster.chips:,} chips stay compute-bound down to a batch of "
        f"{format_si(batch)} tokens, and this batch up to {chips:,.0f} chips"
    )


def _closed_form(choice: Choice, closed_form: Candidate) -> Iterator[str]:
    layout, book = choice.layout, closed_form.layout
    mine = (layout.data * layout.weight_shards, layout.tensor, layout.stage)
    its = (book.data * book.weight_shards, book.tensor, book.stage)
    if mine == its and layout.chips_used == book.chips_used:
        yield f"the closed form, rounded to what divides, agrees: {book}"
    else:
        yield (
            f"the closed form, at full rate and with all traffic hidden, would take {book}; the "
            f"step model counts achieved rates and what does not hide"
        )


def disagreement(rules: Sequence[Rule], bound: str) -> str | None:
    """Where the book's rule and the step model name different bounds, and why."""
    by_id = {rule.id: rule for rule in rules}
    rule = by_id.get("fsdp-tensor") or by_id.get("fsdp")
    if rule is None or rule.bound is None or rule.holds is (bound == "compute"):
        return None
    says = "compute-bound" if rule.holds else "bound by communication"
    return (
        f"the book's rule calls it {says} ({rule.value:,.0f} against {rule.bound:,.0f} tokens a "
        f"chip), the step model bound by {bound}: it counts the gate, attention, ways that divide "
        f"and the rates that links and matrix units reach"
    )
