"""Why a prediction may be far off: stated rules, looked at in order, none fitted.

A reason is printed beside a bad group so that a reader can judge it; it never changes a number.
"""

from collections.abc import Callable, Iterator

from muster.hardware.chip import Switched
from muster.validation.groups import Group
from muster.validation.setup import Setup

SMALL_TOKENS_PER_CHIP = 4096
SMALL_ROWS = 1024
LARGE_SCATTER = 0.10
_QUANTIZED = {"f8": "fp8", "f4": "fp4", "int8": "int8"}


def likely_reasons(group: Group) -> tuple[str, ...]:
    """Every rule that holds for a group, the most telling first."""
    setup = group.setups[0]
    found: list[str] = []
    for rule in RULES:
        found += rule(setup)
    if group.scatter > LARGE_SCATTER:
        found.insert(1, f"its measurements differ by {group.scatter:.0%}")
    return tuple(dict.fromkeys(found))


def likely_reason(group: Group) -> str:
    """The most telling reason."""
    reasons = likely_reasons(group)
    return reasons[0] if reasons else "no known reason"


def _contradiction(setup: Setup) -> Iterator[str]:
    for contradiction in setup.contradictions:
        yield f"the row contradicts itself: {contradiction}"


def _measurement(setup: Setup) -> Iterator[str]:
    notes = setup.run.notes.lower()
    if "includes the evaluation" in notes or "upper bound" in notes:
        yield "measured time holds more than the step"
    if "read from a plot" in notes:
        yield "measured value was read from a plot"
    if "single step" in notes or "sample log" in notes:
        yield "one step of a sample log"


def _quantized(setup: Setup) -> Iterator[str]:
    name = _QUANTIZED.get(setup.formats.compute)
    if name:
        yield f"{name}: rates and scaling of quantized matmuls"


def _small_batch(setup: Setup) -> Iterator[str]:
    network, layout = setup.cluster.chip.network, setup.layout
    tokens = setup.workload.batch_tokens / layout.chips_used
    outside = isinstance(network, Switched) and layout.chips_used > network.domain_chips
    if tokens < SMALL_TOKENS_PER_CHIP and outside and layout.batch_ways > 1:
        yield f"data parallel over scale-out with {tokens:.0f} tokens a chip"
    micro = setup.micro_batch_sequences * setup.workload.sequence_length
    rows = micro / (layout.sequence * layout.tensor)
    if rows < SMALL_ROWS:
        yield f"small matmuls: {rows:.0f} tokens a chip in a microbatch"


def _bubble(setup: Setup) -> Iterator[str]:
    stages, microbatches = setup.layout.stage, setup.layout.microbatches
    if stages > 1 and microbatches < 2 * stages:
        yield f"bubble: {microbatches} microbatches on {stages} stages"


def _experts(setup: Setup) -> Iterator[str]:
    if setup.architecture.experts is not None:
        yield "mixture of experts: balance, dispatch and capacity are not published"


def _remat(setup: Setup) -> Iterator[str]:
    if setup.remat.offloaded:
        yield "activations offloaded to the host"
    if not setup.remat.exact:
        yield f"remat {setup.remat.raw[:32]!r} approximated"


def _attention(setup: Setup) -> Iterator[str]:
    if setup.attention == "unfused":
        yield "unfused attention"


def _slices(setup: Setup) -> Iterator[str]:
    if setup.fsdp_over_slices:
        yield "parameters sharded between slices"
    elif setup.layout.slice > 1:
        yield "data parallel over DCN"


def _power(setup: Setup) -> Iterator[str]:
    if setup.power_watts:
        yield f"chips limited to {setup.power_watts:.0f} W"


def _not_stated(setup: Setup) -> Iterator[str]:
    yield from setup.remarks


RULES: tuple[Callable[[Setup], Iterator[str]], ...] = (
    _contradiction,
    _quantized,
    _experts,
    _bubble,
    _small_batch,
    _remat,
    _slices,
    _power,
    _measurement,
    _attention,
    _not_stated,
)
