"""Why a prediction is far off: what the row leaves open, and how much of the gap that can be.

Each rule names something that the source does not say, or that the model only bounds, and predicts
the same step with it otherwise. What closes half of the gap or more, in logarithms, is its reason;
where nothing does, the gap is said to be not explained, with what comes nearest. A reason is
printed beside a bad group so that a reader can judge it; it never changes a number.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from muster.errors import MusterError
from muster.hardware.chip import Switched
from muster.roofline.efficiency import efficiency
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import TORCH, TORCH_COMPILED, AttentionKernel, Software
from muster.roofline.step_time import StepTime, predict_step
from muster.validation.groups import Group
from muster.validation.predict import cluster_of, kernel_of, policy_of, software_of, step_time
from muster.validation.setup import Setup

NEAR = 0.05  # an error within which there is nothing to explain
MOST = 0.5  # share of the gap that a reason explains
WORTH_NAMING = 0.15
NETWORK_FACTOR = 2.0  # by how much the networks of clouds differ from a chip's usual one
NOT_EXPLAINED = "not explained"
_QUANTIZED = {"f8": "fp8", "f4": "fp4", "int8": "int8"}


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """What could be otherwise, and the step that is predicted then."""

    text: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Explained:
    """An alternative with the share of the gap that it closes: 1 for all, more for too much."""

    text: str
    share: float


def explanations(group: Group, predicted: float) -> tuple[Explained, ...]:
    """Everything that closes some of the gap, in the order of the rules.

    Args:
        group: the set-up.
        predicted: seconds of its step.
    """
    setup = group.setups[0]
    gap = math.log(group.measured_seconds / predicted)
    step = step_time(setup)
    found = [Explained(text=text, share=1.0) for text in _of_measurement(group, gap)]
    for rule in RULES:
        for each in _safely(rule, setup, step):
            share = math.log(each.seconds / step.total) / gap if each.seconds > 0 else 0.0
            if share > 0:
                found.append(Explained(text=each.text, share=share))
    return tuple(found)


def likely_reason(group: Group, predicted: float) -> str:
    """The first that explains most of the gap; blank where there is no gap to speak of."""
    if abs(predicted / group.measured_seconds - 1) <= NEAR:
        return ""
    found = explanations(group, predicted)
    told = next((each.text for each in found if each.share >= MOST), None)
    if told is not None:
        return told
    most = max(found, key=lambda each: each.share, default=None)
    if most is None or most.share < WORTH_NAMING:
        return NOT_EXPLAINED
    return f"{NOT_EXPLAINED}: {most.text} would be {most.share:.0%} of it"


def _safely(rule: "Rule", setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """A rule's alternatives; one that cannot be predicted is none."""
    try:
        yield from rule(setup, step)
    except (MusterError, ArithmeticError, ValueError, LookupError):
        return


def _of_measurement(group: Group, gap: float) -> Iterator[str]:
    """What the measurement itself may be wrong by."""
    if math.log1p(group.scatter) >= abs(gap):
        yield f"its measurements differ by {group.scatter:.0%}"
    notes = group.setups[0].run.notes.lower()
    if gap > 0 and ("includes the evaluation" in notes or "upper bound" in notes):
        yield "measured time holds more than the step"


def _quantized(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """Narrow matmuls as slow as bf16 ones, or at their full peak."""
    del step
    compute = setup.formats.compute
    name = _QUANTIZED.get(compute)
    if not name:
        return
    slow = replace(setup, workload=replace(setup.workload, compute_dtype="bf16"))
    yield Alternative(text=f"{name} matmuls at bf16's rate", seconds=_again(slow))
    chip = setup.cluster.chip
    reached = efficiency(chip.id, software_of(setup).name).matmul_narrow
    peaks = {k: v / reached if k != "bf16" else v for k, v in chip.peak_flops.items()}
    fast_chip = replace(chip, peak_flops=peaks)
    cluster = replace(setup.cluster, slice=replace(setup.cluster.slice, chip=fast_chip))
    yield Alternative(
        text=f"{name} matmuls at their full peak", seconds=_again(replace(setup, cluster=cluster))
    )


def _interleaving(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """As many pieces a stage as there are layers, where their number was not published."""
    layout, layers = setup.layout, setup.architecture.num_layers
    if layout.stage > 1 and setup.run.virtual_pp is None and layers % layout.stage == 0:
        most = layers // layout.stage
        again = replace(setup, layout=replace(layout, virtual_stages=most))
        text = f"virtual stages, not published ({most} would do the most)"
        yield Alternative(text=text, seconds=_again(again))
    elif layout.stage > 1:
        yield Alternative(text="the pipeline's bubble", seconds=step.total - step.bubble)


def _remat(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """More or less computed again, where it was not published or is approximated."""
    del step
    raw = setup.run.remat_policy
    if raw and setup.remat.exact:
        return
    what = f"remat {setup.remat.raw[:32]!r}, approximated" if raw else "remat, not published"
    whole = software_of(setup).whole_layer
    for remat in (Remat.NONE, Remat.FULL):
        seconds = _again(setup, remat=remat_policy(remat, whole_layer=whole))
        yield Alternative(text=f"{what} ({remat.value} taken instead)", seconds=seconds)


def _attention(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """The other kind of kernel, where none was named."""
    del step
    if setup.run.attention_kernel:
        return
    other = replace(setup, attention="fused" if setup.attention == "unfused" else "unfused")
    yield Alternative(
        text=f"attention kernel, not published ({other.attention} taken instead)",
        seconds=_again(setup, attention=kernel_of(other)),
    )


def _program(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """PyTorch with its compiler, or without, where the row does not name it."""
    del step
    software = software_of(setup)
    if software == TORCH_COMPILED:
        yield Alternative(text="torch.compile, not in use", seconds=_again(setup, software=TORCH))
    elif setup.software == "torch" and "eager" not in setup.run.notes.lower():
        seconds = _again(setup, software=TORCH_COMPILED)
        yield Alternative(text="torch.compile, in use but not named", seconds=seconds)


def _network(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """A network of half or twice the usual bandwidth, where it was not published."""
    del step
    chip = setup.cluster.chip
    network = chip.network
    outside = isinstance(network, Switched) and setup.cluster.chips > network.domain_chips
    if not outside or setup.run.topology or not isinstance(network, Switched):
        return
    for word, factor in (("twice", NETWORK_FACTOR), ("half", 1 / NETWORK_FACTOR)):
        faster = replace(network, scale_out_bandwidth=factor * network.scale_out_bandwidth)
        cluster = replace(
            setup.cluster,
            slice=replace(setup.cluster.slice, chip=replace(chip, network=faster)),
        )
        seconds = _again(replace(setup, cluster=cluster))
        yield Alternative(text=f"network between nodes, not published ({word} it)", seconds=seconds)


def _overlap(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """All traffic hidden, or none."""
    del setup
    if step.traffic.total:
        hidden = step.total - step.exposed
        yield Alternative(text="traffic, if all of it did hide", seconds=hidden)
        shown = step.traffic.total - step.traffic.stage - step.traffic.host - step.exposed
        yield Alternative(text="traffic, if none of it did hide", seconds=step.total + shown)


def _power(setup: Setup, step: StepTime) -> Iterator[Alternative]:
    """Chips that their power limit does not slow."""
    del step
    if setup.power_watts:
        seconds = _again(replace(setup, power_watts=None))
        yield Alternative(text=f"the limit of {setup.power_watts:.0f} W", seconds=seconds)


def _again(
    setup: Setup,
    *,
    remat: RematPolicy | None = None,
    attention: AttentionKernel | None = None,
    software: Software | None = None,
) -> float:
    """The step of a set-up that something is changed of."""
    return predict_step(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        setup.layout,
        remat=remat or policy_of(setup),
        attention=attention or kernel_of(setup),
        software=software or software_of(setup),
    ).total


type Rule = Callable[[Setup, StepTime], Iterator[Alternative]]

# What a source leaves out comes before what the model only bounds.
RULES: tuple[Rule, ...] = (
    _interleaving,
    _remat,
    _attention,
    _network,
    _program,
    _power,
    _quantized,
    _overlap,
)
