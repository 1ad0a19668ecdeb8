"""In what two choices differ: what was changed, and which terms of the step make the difference."""

from collections.abc import Sequence

from muster.planner.choice import Choice
from muster.planner.plan import run_cost
from muster.roofline.step_time import StepTime
from muster.roofline.workload import Workload
from muster.units import format_seconds

TRAFFIC = {
    "fsdp": "gathering weights and scattering gradients (FSDP)",
    "tensor": "activations between tensor-parallel chips",
    "sequence": "keys and values between pieces of a sequence",
    "expert": "tokens to their experts and back",
    "data": "gradients between replicas",
    "dcn": "gradients between slices",
    "stage": "activations between pipeline stages",
    "host": "activations to the host's memory and back",
}
TERMS = {"compute": "math", "hbm": "HBM", "bubble": "pipeline's bubble and sends", "host": "host"}
# Terms are listed until what is left is this share of the whole difference.
LEFT_OUT = 0.05


def changed(choice: Choice, other: Choice) -> str:
    """What else is different of another choice than its ways, to stand behind them."""
    parts = []
    if other.remat is not choice.remat:
        parts.append(f"remat {other.remat}")
    mine, its = choice.layout, other.layout
    if its.microbatches != mine.microbatches:
        parts.append(f"{its.microbatches} microbatch{'' if its.microbatches == 1 else 'es'}")
    if its.virtual_stages != mine.virtual_stages:
        parts.append(f"{its.virtual_stages} virtual stages")
    return f" with {', '.join(parts)}" if parts else ""


def differences(step: StepTime, other: StepTime) -> list[tuple[str, float]]:
    """How much longer another step takes in each term, the largest difference first."""
    found = [
        (TERMS.get(name, name), seconds - step.terms[name]) for name, seconds in other.terms.items()
    ]
    return sorted((pair for pair in found if pair[1]), key=lambda pair: -abs(pair[1]))


def terms_text(found: Sequence[tuple[str, float]], difference: float) -> str:
    """The largest terms of a difference, until they add up to it.

    >>> terms_text([("math", 0.010), ("fsdp", -0.004), ("HBM", 1e-5)], 0.00601)
    '+10.0 ms math, -4.00 ms fsdp'
    """
    listed: list[str] = []
    left = difference
    for name, change in found:
        if listed and abs(left) <= LEFT_OUT * abs(difference):
            break
        listed.append(f"{'+' if change > 0 else '-'}{format_seconds(abs(change))} {name}")
        left -= change
    return ", ".join(listed) or "equal in every term"


def priced(workload: Workload, choice: Choice, other: Choice) -> str:
    """What both cost: dollars or chip-hours of the run, else chip-seconds of a step."""
    first, second = run_cost(workload, choice), run_cost(workload, other)
    if first.cost_usd is not None and second.cost_usd is not None:
        return f"${second.cost_usd:,.0f} against ${first.cost_usd:,.0f}"
    if first.chip_hours is not None and second.chip_hours is not None:
        return f"{second.chip_hours:,.0f} against {first.chip_hours:,.0f} chip-hours"
    a, b = first.chip_seconds_per_step, second.chip_seconds_per_step
    return f"{b:,.0f} against {a:,.0f} chip-seconds a step"
