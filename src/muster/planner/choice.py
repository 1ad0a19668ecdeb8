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
        examined: layouts whose step was predicted.
        closest: where nothing fits, the choice that is short of least memory.
    """

    ranked: tuple[Choice, ...]
    examined: int
    closest: Choice | None


def measure(minimize: Minimize, chips: int, seconds: float) -> float:
    """What is to be least: seconds, chip-seconds or chips."""
    return {"time": seconds, "cost": chips * seconds, "chips": float(chips)}[minimize]


def axes_used(layout: Layout) -> int:
    """How many mesh axes have more than one way."""
    ways = (layout.stage, layout.data, layout.fsdp, layout.sequence, layout.expert, layout.tensor)
    return sum(size > 1 for size in ways)
