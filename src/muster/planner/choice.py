"""What a search is asked for, and what it finds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from muster.errors import UnknownName
from muster.hardware import Cluster
from muster.roofline.remat import Remat
from muster.roofline.step_memory import StepMemory
from muster.roofline.step_time import StepTime
from muster.sharding.mesh import Layout

type Minimize = Literal["time", "cost", "chips"]

AXES = ("stage", "data", "fsdp", "sequence", "expert", "tensor", "microbatches")
# Times this near each other are equal: no prediction is more exact. A search `within` this finds
# the same choice as one that also lists what is worth showing, in less time.
EQUAL = 1.01
# How much of its memory a chip may be predicted to fill before less of it is worth a hair of time:
# predicted memory is off by 4% at the median of the runs that publish it, and 14% too low at most.
ROOMY = 0.86
CLEARLY_LESS = 0.05  # of usable memory
# From most memory to least, and but for the last from least computed again to most.
POLICIES = (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL, Remat.OFFLOAD)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout with its recomputation policy, predicted step and memory.

    Attributes:
        cluster: the chips that the layout fills: those given, or legal slices with fewer.
    """

    cluster: Cluster
    layout: Layout
    remat: Remat
    step: StepTime
    memory: StepMemory

    @property
    def seconds(self) -> float:
        """Predicted time of a step."""
        return self.step.total

    @property
    def roomy(self) -> bool:
        """Whether memory is left over for what the prediction may be off by."""
        return self.memory.total <= ROOMY * self.memory.usable

    @property
    def axes(self) -> int:
        """How many mesh axes are used: the measure of simplicity."""
        return axes_used(self.layout)

    @property
    def mesh(self) -> Layout:
        """The layout without its microbatches and pieces of stages."""
        return replace(self.layout, microbatches=1, virtual_stages=1)


@dataclass(frozen=True, kw_only=True)
class Restrictions:
    """What the user holds fixed.

    Attributes:
        fixed: ways of an axis that must be just so.
        remat: the only policy to consider.
        max_chips: most chips of the cluster to use.
        trainable: only what `muster train` can carry out.
    """

    fixed: Mapping[str, int] = field(default_factory=dict)
    remat: Remat | None = None
    max_chips: int | None = None
    trainable: bool = False

    def __post_init__(self) -> None:
        """Refuse axes that do not exist."""
        for axis in self.fixed:
            if axis not in AXES:
                raise UnknownName("mesh axis", axis, AXES)

    def allows(self, axis: str, ways: int) -> bool:
        """Whether an axis may have so many ways."""
        return self.fixed.get(axis, ways) == ways

    @property
    def weight_shards(self) -> int:
        """Ways of sharding weights that are held: asked for, whether they are advisable or not."""
        return prod(self.fixed.get(axis, 1) for axis in ("fsdp", "sequence", "expert"))

    @property
    def policies(self) -> tuple[Remat, ...]:
        """The policies to consider, least recomputation first."""
        return (self.remat,) if self.remat else POLICIES


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        ranked: choices that fit, best first; one for each set of ways. All that are as near the
            best as was asked for are there; others may be.
        chosen: the one to take: the first, unless it fills the chips and another within a percent
            of it clearly less; None where nothing fits.
        examined: layouts whose step was predicted.
        closest: where nothing fits, the choice that is short of least memory.
    """

    ranked: tuple[Choice, ...]
    chosen: Choice | None
    examined: int
    closest: Choice | None


def measure(minimize: Minimize, chips: int, seconds: float) -> float:
    """What is to be least: seconds, chip-seconds or chips."""
    return {"time": seconds, "cost": chips * seconds, "chips": float(chips)}[minimize]


def preferred(first: Choice, others: Iterable[Choice], minimize: Minimize) -> Choice:
    """The one to take of the first and of others that are as good within a percent.

    The first, where memory is left over; else the best other with memory left over; else the one
    that takes least memory, if it is clearly less.
    """
    if first.roomy:
        return first
    near = [each for each in others if _as_good(each, first, minimize)]
    roomy = [each for each in near if each.roomy]
    if roomy:
        return min(roomy, key=lambda each: (measure_of(minimize, each), each.seconds))
    least = min(near, key=lambda each: each.memory.total, default=first)
    clearly = first.memory.total - least.memory.total >= CLEARLY_LESS * first.memory.usable
    return least if clearly else first


def _as_good(other: Choice, first: Choice, minimize: Minimize) -> bool:
    """Fewest chips are fewest: there, of as many chips, times near each other are equal."""
    value, least = measure_of(minimize, other), measure_of(minimize, first)
    if minimize == "chips":
        return value == least and other.seconds <= EQUAL * first.seconds
    return value <= EQUAL * least


def measure_of(minimize: Minimize, choice: Choice) -> float:
    """What is to be least, of a choice."""
    return measure(minimize, choice.layout.chips_used, choice.seconds)


def axes_used(layout: Layout) -> int:
    """How many mesh axes have more than one way."""
    ways = (layout.stage, layout.data, layout.fsdp, layout.sequence, layout.expert, layout.tensor)
    return sum(size > 1 for size in ways)
