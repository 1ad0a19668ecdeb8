"""The Plan: the one object that passes through plan, verify, train and launch, and its JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.layout import Layout
from muster.planner.workload import Workload
from muster.roofline.params import ParamCounts

SCHEMA = 1

type Bound = Literal["compute", "hbm", "ici", "dcn", "nvlink", "network", "pipeline"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of thumb with this plan's numbers; `holds` is None where nothing is compared."""

    id: str
    statement: str
    value: float
    bound: float | None = None
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryPerChip:
    """Bytes on the fullest chip, term by term; `usable` is what the chip offers."""

    params: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    usable: float

    @property
    def total(self) -> float:
        """Bytes of all terms together."""
        return (
            self.params
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + self.workspace
        )

    @property
    def fits(self) -> bool:
        """Whether the total is within what is usable."""
        return self.total <= self.usable


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step and the run cost.

    Attributes:
        flops_per_token: 6 x active parameters, the convention of the MFU below.
        exact_flops_per_token: every matmul with causal attention, forward and backward.
        step_seconds: at `mfu`; the whole run's figures follow from it.
        mfu: the assumed share of the chips' peak, in the 6N convention.
        bound: what the closed-form rules say holds this layout back.
        compute_seconds: the step's 6N FLOPs at the chips' peak.
    """

    flops_per_token: int
    exact_flops_per_token: int
    flops_per_step: int
    recompute_flops_per_token: int
    train_flops: int | None
    step_seconds: float
    mfu: float
    tokens_per_second_per_chip: float
    bound: Bound
    compute_seconds: float
    memory_per_chip: MemoryPerChip
    train_seconds: float | None
    chip_hours: float | None
    cost_usd: float | None
