"""Layouts for the compiler to judge: the planner's best meshes with policies and microbatches.

The planner's step model ranks them, so that the compiler begins with the most promising; what it
cannot tell apart (it is off by several percent) the compiler does. Two bounds leave out what cannot
win whatever the compiler does: the FLOPs at the chip's peak, and parameters and moments that alone
are more than there is memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from muster.errors import MusterError
from muster.hardware import Cluster
from muster.planner.choice import AXES, POLICIES, Choice, Restrictions
from muster.planner.plan_file import PlannedRun
from muster.planner.search import search
from muster.planner.trainable import layout_obstacles
from muster.proof.others import plan_of
from muster.roofline.flops import training_flops
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_memory import step_memory
from muster.roofline.step_time import StepModel
from muster.sharding.mesh import Layout
from muster.tune.choices import with_options, with_step

# A layout predicted to be so many times slower than the best is not compiled.
WORTH_COMPILING = 1.25
MESHES = 8
MICROBATCHES = (1, 2, 4, 8)
# Predicted memory may be too high by so much; of the set-ups of docs/verified-plans.md none is.
MEMORY_OFF = 1.12


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with its policy, and what the planner says of it.

    Attributes:
        step_seconds: predicted.
        memory_bytes: predicted, of one device.
        bound_seconds: no step with this policy takes less, whatever the layout: its FLOPs at the
            chips' peak.
    """

    cluster: Cluster
    layout: Layout
    remat: Remat
    step_seconds: float
    memory_bytes: float
    bound_seconds: float

    def __str__(self) -> str:
        """As tables name it."""
        return layout_name(self.layout, self.remat)

    def plan(self, planned: PlannedRun) -> PlannedRun | None:
        """The whole plan, with the options and step choices of a given one; None where none is."""
        ways = {axis: int(getattr(self.layout, axis)) for axis in AXES}
        try:
            other = plan_of(planned, ways, self.remat, self.cluster)
        except MusterError:
            return None
        return with_step(with_options(other, planned.compiler_options), planned.step)


def layout_name(layout: Layout, remat: Remat) -> str:
    """A layout and its policy in a few words."""
    parts = layout.microbatches
    return f"{layout}, remat {remat.value}{f', {parts} microbatches' if parts > 1 else ''}"


def candidates(planned: PlannedRun) -> list[Candidate]:
    """Layouts that are worth compiling, the quickest by the planner first; the plan's own too."""
    held = Restrictions(trainable=True)
    found = search(
        planned.architecture, planned.cluster, planned.workload, held, within=WORTH_COMPILING
    )
    meshes = [(each.cluster, each.layout) for each in _meshes(found.ranked)]
    once: dict[tuple[str, Layout, Remat], Candidate] = {}
    for cluster, layout in ((planned.cluster, planned.layout), *meshes):
        for each in _variants(planned, cluster, layout):
            once.setdefault((each.cluster.name, each.layout, each.remat), each)
    least = min((each.step_seconds for each in once.values()), default=0.0)
    worth = [each for each in once.values() if each.step_seconds <= WORTH_COMPILING * least]
    return sorted(worth, key=lambda each: each.step_seconds)


def _meshes(ranked: Sequence[Choice]) -> Iterator[Choice]:
    """The best of all, and the best of each way to split layers and experts."""
    yield from ranked[: MESHES // 2]
    splits: dict[tuple[int, int], Choice] = {}
    for each in ranked:
        splits.setdefault((each.layout.tensor, each.layout.expert), each)
    yield from [*splits.values()][: MESHES // 2]


def predicted_seconds(planned: PlannedRun) -> float:
    """The planner's own prediction, also of a plan whose MFU was assumed."""
    model = StepModel(planned.architecture, planned.cluster, planned.workload)
    policy = remat_policy(planned.remat, whole_layer=model.software.whole_layer)
    return model.step(planned.layout, policy).total


def _variants(planned: PlannedRun, cluster: Cluster, mesh: Layout) -> Iterator[Candidate]:
    """A mesh with every policy and number of microbatches that it might fit with."""
    model = StepModel(planned.architecture, cluster, planned.workload)
    devices, usable = cluster.chip.devices_per_chip, cluster.chip.hbm_bytes
    for microbatches in MICROBATCHES:
        layout = replace(mesh, microbatches=microbatches)
        if not _is_legal(planned, layout):
            continue
        for remat in POLICIES:
            policy = remat_policy(remat, whole_layer=model.software.whole_layer)
            memory = step_memory(model, layout, policy).total
            if memory <= MEMORY_OFF * usable:
                yield Candidate(
                    cluster=cluster,
                    layout=layout,
                    remat=remat,
                    step_seconds=model.step(layout, policy).total,
                    memory_bytes=memory / devices,
                    bound_seconds=_bound(planned, cluster, layout, remat),
                )


def _is_legal(planned: PlannedRun, layout: Layout) -> bool:
    workload = planned.workload
    divides = not workload.batch_sequences % (layout.batch_ways * layout.microbatches)
    obstacles = layout_obstacles(planned.architecture, layout, workload.sequence_length)
    return divides and next(obstacles, None) is None


def _bound(planned: PlannedRun, cluster: Cluster, layout: Layout, remat: Remat) -> float:
    flops = training_flops(
        planned.architecture, planned.workload.sequence_length, causal=True, remat=remat
    )
    rate = layout.chips_used * cluster.chip.bf16_flops
    return flops.hardware_per_token * planned.workload.batch_tokens / rate
