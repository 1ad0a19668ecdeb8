"""How far a plan's numbers may be off, and what the reader must know of where they come from."""

from collections.abc import Iterator

from muster.models.architecture import Architecture
from muster.planner.plan import Plan
from muster.report.words import counted
from muster.units import format_bytes
from muster.validation.expected import Expected, expected_error

DOES_NOT_FIT = "does not fit: "  # how the warning begins that the verdict takes over
_NEAREST = "; it fits "
FAR_ABOVE = 1.25  # an assumed MFU so many times the predicted one is worth a line


def error_words(chip: str, architecture: Architecture | None = None) -> tuple[str, str]:
    """The expected error of a predicted step on a chip, and what it rests on.

    Args:
        chip: its id.
        architecture: of the model. Measured set-ups are of dense models but for a handful, and
            what skewed routing costs is not predicted: of mixtures of experts it is not known.

    >>> error_words("abacus")
    ('unknown', 'no bf16 run on abacus was measured')
    """
    known = expected_error(chip)
    if known.mean is None:
        return "unknown", f"no bf16 run on {chip} was measured"
    mean = f"+-{100 * known.mean:.{0 if known.mean >= 0.01 else 1}f}%"
    if not known.measured:
        return "unknown", (
            f"no bf16 run on {chip} was measured; on {known.fitted}, whose efficiencies it takes, "
            f"{mean}"
        )
    if architecture is not None and architecture.experts is not None:
        return "unknown", f"{mean} is the mean of {_basis(known)}, but mostly of dense models"
    return mean, f"mean of {_basis(known)}"


def _basis(known: Expected) -> str:
    setups = counted(known.setups, "measured set-up")
    on = known.fitted if known.held_back else f"{known.fitted}, which it was fitted to"
    if known.fitted != known.chip:
        own = counted(known.rows, "run")
        return f"{setups} on {on} and its kin, {own} of them on {known.chip}"
    if len(known.sources) == 1:
        return f"{setups} on {on}, all of one source ({known.sources[0]})"
    return f"{setups} on {on}, of {len(known.sources)} sources"


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Every warning but that it does not fit, which is the headline; those of trust first."""
    told = [line for line in plan.warnings if not line.startswith(DOES_NOT_FIT)]
    return tuple(dict.fromkeys((*_of_shortage(plan), *_of_trust(plan), *told)))


def shortage(plan: Plan) -> tuple[str, str]:
    """By how much memory is short, and the nearest change that would fit; blank where none."""
    memory = plan.memory
    _, _, nearest = _refusal(plan).partition(_NEAREST)
    return (
        f"{format_bytes(memory.total)} a chip of {format_bytes(memory.usable)} usable "
        f"({memory.total / memory.usable:.0%})",
        nearest,
    )


def _refusal(plan: Plan) -> str:
    lines = (line for line in plan.warnings if line.startswith(DOES_NOT_FIT))
    return next(lines, DOES_NOT_FIT).removeprefix(DOES_NOT_FIT)


def _of_shortage(plan: Plan) -> Iterator[str]:
    """What the refusal says beside numbers and nearest change."""
    if not plan.fits:
        yield _refusal(plan).partition(_NEAREST)[0]


def _of_trust(plan: Plan) -> Iterator[str]:
    chip = plan.cluster.chip
    known = expected_error(chip.id)
    if not known.measured:
        yield (
            f"no bf16 run on {chip.id} was measured: its efficiencies are those of {known.fitted}, "
            f"so how far off these times are is not known"
        )
    elif len(known.sources) == 1 and known.fitted == chip.id:
        runs = counted(known.rows, "measured run")
        yield f"the efficiencies of {chip.id} rest on one source: {runs} of {known.sources[0]}"
    if plan.estimate.assumed:
        yield from _of_assumption(plan)
    price = chip.fact("price.usd_per_chip_hour")
    if price and price.weak and plan.estimate.cost_usd is not None:
        yield f"the price of {chip.id} is of {price.confidence} confidence: {price.note}"


def _of_assumption(plan: Plan) -> Iterator[str]:
    e, chip = plan.estimate, plan.cluster.chip
    used = plan.layout.chips_used
    predicted = e.flops_per_step / (used * chip.bf16_flops * plan.choice.seconds)
    if e.mfu > FAR_ABOVE * predicted:
        yield (
            f"the MFU of {e.mfu:.1%} that was assumed is {e.mfu / predicted:.1f} times the "
            f"{predicted:.1%} that is predicted"
        )
    if e.chips != used:
        yield (
            f"the assumed MFU, days and cost are of {counted(e.chips, 'chip')}; the layout and its "
            f"predicted step fill {used:,}"
        )
