"""What a search is asked for, and what it finds."""

from collections.abc import Mapping
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
# Times this near each other are equal: no prediction is more exact.
EQUAL = 1.01
# How much of its memory a chip may be predicted to fill before less of it is worth a hair of time:
# predicted memory is off by 4% at the median of the runs that publish it and by 14% at most.
ROOMY = 0.86
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
        chosen: the one to take: the first, unless it fills the chips and another that does not is
            within a percent of it; None where nothing fits.
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


def preferred(first: Choice, roomy: Choice | None, minimize: Minimize) -> Choice:
    """Of the first and the first with room, the one to take.

    The one with room, where what is to be least is within a percent of the least. Fewest chips are
    fewest: there, of as many chips, times within a percent of each other are equal.
    """
    if roomy is None or first.roomy:
        return first
    least, value = (
        measure(minimize, each.layout.chips_used, each.seconds) for each in (first, roomy)
    )
    if minimize == "chips":
        near = value == least and roomy.seconds <= EQUAL * first.seconds
    else:
        near = value <= EQUAL * least
    return roomy if near else first


def axes_used(layout: Layout) -> int:
    """How many mesh axes have more than one way."""
    ways = (layout.stage, layout.data, layout.fsdp, layout.sequence, layout.expert, layout.tensor)
    return sum(size > 1 for size in ways)
