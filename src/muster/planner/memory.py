"""What a layout needs on its fullest chip, and the least recomputation with which that fits."""

from dataclasses import dataclass, replace

from muster.hardware import Chip
from muster.models.architecture import Architecture
from muster.planner.layout import divisors
from muster.roofline.memory import (
    LAYERS_IN_FLIGHT,
    StateFormat,
    memory_per_chip,
)
from muster.roofline.remat import Remat, layer_weights
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

# From nothing computed again to everything; the first that fits is the fastest.
BY_RECOMPUTATION = (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the fullest chip, term by term.

    Attributes:
        workspace: weights of the layers that are gathered at once.
        usable: what the chip offers.
        host: activations that wait in the host's memory instead.
    """

    params: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    workspace: float
    usable: float
    host: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of all terms on the chip."""
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
class Fit:
    """A layout with its microbatches, the recomputation policy, and the memory they come to."""

    layout: Layout
    remat: Remat
    memory: Memory


def least_recomputation(
    architecture: Architecture, chip: Chip, workload: Workload, layout: Layout
) -> Fit:
    """The first policy that fits, whole batch before microbatches; else the one needing least.

    A batch in one piece gathers every weight once a pass, so splitting it comes last.
    """

    def fit(microbatches: int, remat: Remat) -> Fit:
        split = replace(layout, microbatches=microbatches)
        memory = memory_of(architecture, chip, workload, split, remat)
        return Fit(layout=split, remat=remat, memory=memory)

    policies = (Remat(workload.remat),) if workload.remat else BY_RECOMPUTATION
    pieces = divisors(workload.batch_sequences // layout.batch_ways)
    least = fit(pieces[-1], policies[-1])
    if not least.memory.fits:
        return least
    tried = (fit(microbatches, remat) for microbatches in pieces for remat in policies)
    return next(each for each in tried if each.memory.fits)


def memory_of(
    architecture: Architecture, chip: Chip, workload: Workload, layout: Layout, remat: Remat
) -> Memory:
    """The terms of `Memory` for one layout and policy."""
    held = memory_per_chip(
        architecture,
        tokens_per_chip=tokens_in_flight(workload, layout),
        remat=remat,
        state=state_format(workload),
        fsdp=layout.weight_shards,
        tensor=layout.tensor,
        stage=layout.stage,
    )
    return Memory(
        params=held.params,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=held.activations,
        logits=held.logits,
        workspace=_gathered_layers(architecture, workload, layout),
        usable=chip.hbm_bytes,
        host=held.host_activations,
    )


def state_format(workload: Workload) -> StateFormat:
    """Number formats of the training state."""
    return StateFormat(
        param_dtype=workload.param_dtype,
        optimizer=workload.optimizer,
        optimizer_dtype=workload.optimizer_dtype,
    )


def tokens_in_flight(workload: Workload, layout: Layout) -> int:
    """Tokens of one microbatch that one tensor-parallel group holds."""
    ways = layout.batch_ways * layout.sequence * layout.microbatches
    return -(-workload.batch_tokens // ways)


def _gathered_layers(architecture: Architecture, workload: Workload, layout: Layout) -> float:
    """Bytes of the layers' weights that FSDP has gathered at once: one in use, one on its way."""
    if layout.weight_shards == 1:
        return 0.0
    largest = max(
        sum(weight.count for weight in layer_weights(architecture, layer))
        for layer, _ in architecture.layer_groups
    )
    bytes_each = state_format(workload).param_bytes
    return LAYERS_IN_FLIGHT * largest * bytes_each / layout.tensor
