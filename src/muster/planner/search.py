"""Search: every legal layout of a cluster, pruned by bounds, ranked by predicted step time.

    for every mesh, least bound first, until a bound is beyond what is worth showing
        for every number of pieces a stage, and of microbatches, most first
            if its bound is not beyond
                for every split of the batch ways into shards and replicas
                    the least recomputation that fits

Nothing is sampled: what is left out is either illegal (`planner.meshes`, `planner.constraints`) or
bounded away (`planner.bounds`). The order of equals is time, then memory, then simplicity (fewer
axes).
"""

import math

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.bounds import Bounds
from muster.planner.choice import (
    AXES,
    POLICIES,
    Choice,
    Found,
    Minimize,
    Restrictions,
    axes_used,
    measure,
)
from muster.planner.meshes import Meshes, filled_by, schedules
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import FLASH, AttentionKernel, Software
from muster.roofline.step_memory import StepMemory, stage_memory, step_memory
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

__all__ = [
    "AXES",
    "POLICIES",
    "WORTH_SHOWING",
    "Choice",
    "Found",
    "Minimize",
    "Restrictions",
    "measure",
    "search",
]

RUNS_MATMULS_AGAIN = (Remat.OUTPUTS, Remat.FULL)
THRIFTIEST = (Remat.FULL, Remat.OFFLOAD)
# A layout this much slower than the best is not worth a line among the alternatives.
WORTH_SHOWING = 1.15


def search(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions | None = None,
    *,
    minimize: Minimize = "time",
    software: Software | None = None,
    attention: AttentionKernel = FLASH,
    within: float = WORTH_SHOWING,
) -> Found:
    """Find the layouts with the least predicted step time, cost or chips.

    Args:
        architecture: the model.
        cluster: the chips; fewer are used where the batch does not divide over them.
        workload: batch, sequence and formats.
        restrictions: what is held fixed.
        minimize: a step's seconds, its chip-seconds, or the chips that it takes.
        software: who writes the step; None for what most people use on the chip.
        attention: the attention kernel.
        within: up to how many times the least everything is to be found.

    Raises:
        BadInput: the batch does not split over the slices.
    """
    if workload.batch_sequences % cluster.slices:
        raise BadInput(_uneven(cluster, workload))
    model = StepModel(architecture, cluster, workload, attention=attention, software=software)
    return _Search(model, restrictions or Restrictions(), minimize, within).run()


def _uneven(cluster: Cluster, workload: Workload) -> str:
    slices, sequences = cluster.slices, workload.batch_sequences
    below, above = sequences // slices * slices, (sequences // slices + 1) * slices
    nearest = f"{below}seq and {above}seq" if below else f"{above}seq"
    return f"{sequences:,} sequences do not split over {slices} slices; nearest batches: {nearest}"


# A mesh's batch ways as shards and replicas, most shards first.
type Splits = tuple[Layout, ...]


class _Search:
    """One search: the models that it asks, and the best that it has seen."""

    def __init__(
        self, model: StepModel, restrictions: Restrictions, minimize: Minimize, within: float
    ) -> None:
        self.minimize: Minimize = minimize
        self.within = within
        self.cluster = cluster = model.cluster
        self.models: dict[int, StepModel | None] = {cluster.slice.chips: model}
        self.policies = {
            remat: remat_policy(remat, whole_layer=model.software.whole_layer)
            for remat in restrictions.policies
            if remat is not Remat.OFFLOAD or cluster.chip.kind == "tpu" or restrictions.remat
        }
        self.meshes = Meshes(
            architecture=model.architecture,
            cluster=cluster,
            workload=model.workload,
            restrictions=restrictions,
            zero_1=not model.software.shards_replicas,
        )
        self.bounds = Bounds(self._model_for, next(iter(self.policies.values())))
        dram = cluster.chip.fact("host.dram_bytes")
        known = dram.value if dram else None
        whole = float(known) if isinstance(known, int | float) else math.inf
        self.host_bytes = whole / cluster.chip.chips_per_host
        self.best: dict[Layout, Choice] = {}
        self.least = math.inf
        self.closest: Choice | None = None
        self.examined = 0

    def run(self) -> Found:
        """Consider every mesh that could still be near the best."""
        for bound, mesh in self._in_order():
            if bound > self.least * self.within:
                break
            for pieces in self.meshes.pieces(mesh):
                self._schedule(mesh, pieces)
        ranked = tuple(sorted(self.best.values(), key=self._rank))
        return Found(ranked=ranked, examined=self.examined, closest=self.closest)

    def _in_order(self) -> list[tuple[float, Layout]]:
        """Every mesh that some slice holds with its bound, the least first."""
        bounded = []
        for mesh in self.meshes:
            microbatches = self.meshes.microbatches(mesh)
            if microbatches and self._model_on(mesh.chips_per_slice):
                most, fewest, pieces = microbatches[0], microbatches[-1], self.meshes.pieces(mesh)
                bounded.append((self._bound(mesh, pieces[-1], most, fewest), mesh))
        return sorted(bounded, key=lambda pair: (pair[0], axes_used(pair[1])))

    def _bound(self, mesh: Layout, pieces: int, most: int, fewest: int) -> float:
        """What is to be least is at least this, for such numbers of microbatches."""
        seconds = self.bounds.seconds(mesh, pieces=pieces, microbatches=most, fewest=fewest)
        return measure(self.minimize, mesh.chips_used, seconds)

    def _schedule(self, mesh: Layout, pieces: int) -> None:
        """Every number of microbatches of a mesh with so many pieces a stage."""
        lightest = next(iter(self.policies.values()))
        for split in schedules(mesh, pieces, self.meshes.microbatches(mesh)):
            m = split.microbatches
            if self._bound(mesh, pieces, m, m) > self.least * self.within:
                continue
            splits = tuple(self.meshes.splits(split))
            if not splits or not self._can_fit(splits):
                return  # fewer microbatches need more memory still
            if self._beyond(split, self._least_seconds(splits[0], lightest)):
                continue
            policy = self._lightest_policy(splits)
            if not self._beyond(split, self._least_seconds(splits[0], policy)):
                self._consider(splits)

    def _rank(self, choice: Choice) -> tuple[float, float, float, int, int]:
        """What is to be least, then time, then memory, then simplicity."""
        chips = choice.layout.chips_used
        return (
            measure(self.minimize, chips, choice.seconds),
            choice.seconds,
            choice.memory.total,
            choice.axes,
            choice.layout.microbatches,
        )

    def _beyond(self, layout: Layout, least_seconds: float) -> bool:
        """Whether a bound on a layout's time shows that it is not to be found."""
        bound = measure(self.minimize, layout.chips_used, least_seconds)
        return bound > self.least * self.within

    def _can_fit(self, splits: Splits) -> bool:
        """Whether any split into shards and replicas could fit, whatever is computed again."""
        thriftiest = [remat for remat in THRIFTIEST if remat in self.policies]
        if any(self._some_fits(splits, remat) for remat in thriftiest or self.policies):
            return True
        self._short_of_memory(splits[0], thriftiest or list(self.policies))
        return False

    def _lightest_policy(self, splits: Splits) -> RematPolicy:
        """The least recomputation that any split into shards and replicas could fit with."""
        lightest = next(remat for remat in self.policies if self._some_fits(splits, remat))
        # What waits in the host's memory is not computed again.
        if lightest in RUNS_MATMULS_AGAIN and Remat.OFFLOAD in self.policies:
            return self.policies[Remat.OFFLOAD]
        return self.policies[lightest]

    def _some_fits(self, splits: Splits, remat: Remat) -> bool:
        """Whether most shards fit, or fewest: memory falls as shards grow, but one gathers none."""
        return any(self._fitting(each, remat) for each in dict.fromkeys((splits[0], splits[-1])))

    def _fitting(self, layout: Layout, remat: Remat) -> StepMemory | None:
        """The memory of the fullest stage where it fits, on the host too.

        The first stage mostly is the fullest. Where the host's memory is not known, it suffices.
        """
        model, policy = self._model_for(layout), self.policies[remat]
        memory = stage_memory(model, layout, policy, 0)
        if memory.fits and layout.stage > 1:
            memory = step_memory(model, layout, policy)
        return memory if memory.fits and memory.host <= self.host_bytes else None

    def _short_of_memory(self, layout: Layout, thriftiest: list[Remat]) -> None:
        """Remember what is short of least memory, for when nothing fits."""
        if self.best:
            return
        model = self._model_for(layout)
        for remat in thriftiest:
            policy = self.policies[remat]
            memory = step_memory(model, layout, policy)
            if self.closest is None or memory.total < self.closest.memory.total:
                self.closest = self._predict(layout, remat, policy, memory)

    def _least_seconds(self, sharded: Layout, policy: RematPolicy) -> float:
        """A bound on every split: what the weights' and gradients' traffic takes is left out.

        The split with most shards keeps and updates the fewest parameters.
        """
        self.examined += 1
        step = self._model_for(sharded).step(sharded, policy)
        return step.total - step.fsdp - step.data - step.host

    def _consider(self, splits: Splits) -> None:
        """Every split into shards and replicas that fits, with the least recomputation.

        The host's memory instead of recomputation is a matter of time: both are predicted.
        """
        short = False
        for layout in splits:
            if short and layout.fsdp > 1:
                continue  # fewer shards need more memory still, but one has nothing to gather
            short = True
            for remat, policy in self.policies.items():
                if not short and remat is not Remat.OFFLOAD:
                    continue
                memory = self._fitting(layout, remat)
                if memory:
                    short = False
                    self._keep(self._predict(layout, remat, policy, memory))
                    if remat not in RUNS_MATMULS_AGAIN:
                        break

    def _keep(self, choice: Choice) -> None:
        chips = choice.layout.chips_used
        self.least = min(self.least, measure(self.minimize, chips, choice.seconds))
        mesh = choice.mesh
        held = self.best.get(mesh)
        if held is None or self._rank(choice) < self._rank(held):
            self.best[mesh] = choice

    def _predict(
        self, layout: Layout, remat: Remat, policy: RematPolicy, memory: StepMemory
    ) -> Choice:
        self.examined += 1
        model = self._model_for(layout)
        step = model.step(layout, policy)
        return Choice(cluster=model.cluster, layout=layout, remat=remat, step=step, memory=memory)

    def _model_for(self, layout: Layout) -> StepModel:
        model = self._model_on(layout.chips_per_slice)
        assert model is not None, "a mesh without a slice was not filtered out"
        return model

    def _model_on(self, chips: int) -> StepModel | None:
        """What predicts on the cluster that so many chips a slice fill; None if no slice has them.

        Slices differ in their links alone, so one model serves all.
        """
        if chips not in self.models:
            cluster = filled_by(self.cluster, chips)
            whole = self.models[self.cluster.slice.chips]
            assert whole is not None
            self.models[chips] = whole.on(cluster) if cluster else None
        return self.models[chips]
