"""Search: every legal layout of a cluster, pruned by bounds, ranked by predicted step time.

    for every mesh and pieces a stage, least bound first, until a bound is beyond what is shown
        for every number of microbatches, most first
            if its bound is not beyond
                for every split of the batch ways into shards and replicas
                    the least recomputation that fits, and the least that leaves room

Nothing is sampled: what is left out is either illegal (`planner.meshes`, `planner.constraints`) or
bounded away (`planner.bounds`). The order is time, then memory, then simplicity (fewer axes). Which
of those within a hair of the quickest is chosen, `planner.choice` says.
"""

import math
from dataclasses import replace

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.bounds import Bounds
from muster.planner.choice import (
    AXES,
    EQUAL,
    POLICIES,
    Choice,
    Found,
    Minimize,
    Restrictions,
    axes_used,
    measure,
    measure_of,
    preferred,
)
from muster.planner.host import host_share
from muster.planner.meshes import Meshes, filled_by, schedules
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import AttentionKernel, Software
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
    attention: AttentionKernel | None = None,
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
        attention: the attention kernel; None for what most people use on the chip.
        within: up to how many times the least everything is to be found.

    Raises:
        BadInput: the batch does not split over the slices.
    """
    if workload.batch_sequences % cluster.slices:
        raise BadInput(_uneven(cluster, workload))
    model = StepModel(architecture, cluster, workload, attention=attention, software=software)
    held = restrictions or Restrictions()
    found = _Search(model, held, minimize, within, offloads=bool(held.remat)).run()
    if found.ranked or held.remat or cluster.chip.kind != "tpu":
        return found
    return _Search(model, held, minimize, within, offloads=True).run()


def _uneven(cluster: Cluster, workload: Workload) -> str:
    slices, sequences = cluster.slices, workload.batch_sequences
    below, above = sequences // slices * slices, (sequences // slices + 1) * slices
    nearest = f"{below}seq and {above}seq" if below else f"{above}seq"
    return f"{sequences:,} sequences do not split over {slices} slices; nearest batches: {nearest}"


def _is_searched(remat: Remat, model: StepModel, *, offloads: bool) -> bool:
    """Whether a policy is considered unless it is asked for.

    Offloading is for where nothing else fits: no measured run shows what waiting for a GPU's host
    costs, and on TPUs the compiled step waits where measured ones, that offload a few tensors, do
    not (LLaMA-3 70B on 256 v6e: 2.2 s for 110 GB). Where whole layers run again, keeping their
    outputs saves nothing: it is `full` by another name.
    """
    if remat is Remat.OFFLOAD:
        return offloads and model.cluster.chip.kind == "tpu"
    return remat is not Remat.OUTPUTS or not model.software.whole_layer


# A mesh's batch ways as shards and replicas, most shards first.
type Splits = tuple[Layout, ...]


class _Search:
    """One search: the models that it asks, and the best that it has seen."""

    def __init__(
        self,
        model: StepModel,
        restrictions: Restrictions,
        minimize: Minimize,
        within: float,
        *,
        offloads: bool,
    ) -> None:
        self.minimize: Minimize = minimize
        self.within = within
        self.cluster = cluster = model.cluster
        self.model = model
        self.models: dict[int, tuple[StepModel, ...]] = {cluster.slice.chips: (model,)}
        self.policies = {
            remat: remat_policy(remat, whole_layer=model.software.whole_layer)
            for remat in restrictions.policies
            if restrictions.remat or _is_searched(remat, model, offloads=offloads)
        }
        self.meshes = Meshes(
            architecture=model.architecture,
            cluster=cluster,
            workload=model.workload,
            restrictions=restrictions,
            zero_1=not model.software.shards_replicas,
        )
        self.lightest = next(iter(self.policies.values()))
        self.bounds = Bounds(model, self.lightest)
        self.host_bytes = host_share(cluster.chip).bytes
        self.best: dict[Layout, Choice] = {}
        self.least = math.inf
        self.near: list[Choice] = []
        self.closest: Choice | None = None
        self.examined = 0

    def run(self) -> Found:
        """Consider every mesh that could still be near the best."""
        for bound, mesh, pieces, model in self._in_order():
            if bound > self.least * self.within:
                break
            self._schedule(model, mesh, pieces)
        ranked = tuple(sorted(self.best.values(), key=self._rank))
        return Found(
            ranked=ranked,
            chosen=preferred(ranked[0], self.near, self.minimize) if ranked else None,
            examined=self.examined,
            closest=self.closest,
        )

    def _in_order(self) -> list[tuple[float, Layout, int, StepModel]]:
        """Every mesh and its pieces a stage, with a bound on every slice that it fills."""
        bounded: list[tuple[float, Layout, int, StepModel]] = []
        for mesh in self.meshes:
            microbatches = self.meshes.microbatches(mesh)
            if not microbatches:
                continue
            most, fewest = microbatches[0], microbatches[-1]
            bounded += [
                (self._bound(model, mesh, pieces, most, fewest), mesh, pieces, model)
                for model in self._models_on(mesh.chips_per_slice)
                for pieces in self.meshes.pieces(mesh)
            ]
        return sorted(bounded, key=lambda each: (each[0], axes_used(each[1])))

    def _bound(self, model: StepModel, mesh: Layout, pieces: int, most: int, fewest: int) -> float:
        """What is to be least is at least this, for such numbers of microbatches."""
        seconds = self.bounds.seconds(model, mesh, pieces=pieces, microbatches=most, fewest=fewest)
        return measure(self.minimize, mesh.chips_used, seconds)

    def _schedule(self, model: StepModel, mesh: Layout, pieces: int) -> None:
        """Every number of microbatches of a mesh with so many pieces a stage."""
        for m in schedules(mesh, pieces, self.meshes.microbatches(mesh)):
            if self._bound(model, mesh, pieces, m, m) > self.least * self.within:
                continue
            scheduled = replace(mesh, virtual_stages=pieces, microbatches=m)
            splits = tuple(self.meshes.splits(scheduled))
            if not splits:
                return
            if not self._can_fit(model, splits):
                if model.software.sums_apart:
                    continue  # a single one has no sums to keep
                return  # fewer microbatches need more memory still
            if self._beyond(model, splits[0], self.lightest):
                continue
            if not self._beyond(model, splits[0], self._lightest_policy(model, splits)):
                self._consider(model, splits)

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

    def _beyond(self, model: StepModel, sharded: Layout, policy: RematPolicy) -> bool:
        """Whether no split into shards and replicas can be fast enough to be found.

        What the weights' and gradients' traffic takes is left out. The split with most shards keeps
        and updates the fewest parameters.
        """
        self.examined += 1
        step = model.step(sharded, policy)
        least = step.total - step.fsdp - step.data - step.host
        least *= 1.0 + model.jitter(sharded)  # it is part of `host`
        return measure(self.minimize, sharded.chips_used, least) > self.least * self.within

    def _can_fit(self, model: StepModel, splits: Splits) -> bool:
        """Whether any split into shards and replicas could fit, whatever is computed again."""
        thriftiest = [remat for remat in THRIFTIEST if remat in self.policies]
        if any(self._some_fits(model, splits, remat) for remat in thriftiest or self.policies):
            return True
        self._short_of_memory(model, splits[0], thriftiest or list(self.policies))
        return False

    def _lightest_policy(self, model: StepModel, splits: Splits) -> RematPolicy:
        """The least recomputation that any split into shards and replicas could fit with."""
        lightest = next(remat for remat in self.policies if self._some_fits(model, splits, remat))
        # What waits in the host's memory is not computed again.
        if lightest in RUNS_MATMULS_AGAIN and Remat.OFFLOAD in self.policies:
            return self.policies[Remat.OFFLOAD]
        return self.policies[lightest]

    def _some_fits(self, model: StepModel, splits: Splits, remat: Remat) -> bool:
        """Whether most shards fit, or fewest: memory falls as shards grow, but one gathers none."""
        return any(
            self._fitting(model, each, remat) for each in dict.fromkeys((splits[0], splits[-1]))
        )

    def _fitting(self, model: StepModel, layout: Layout, remat: Remat) -> StepMemory | None:
        """The memory of the fullest stage where it fits, on the host too.

        The first stage mostly is the fullest.
        """
        policy = self.policies[remat]
        memory = stage_memory(model, layout, policy, 0)
        if memory.fits and layout.stage > 1:
            memory = step_memory(model, layout, policy)
        return memory if memory.fits and memory.host <= self.host_bytes else None

    def _short_of_memory(self, model: StepModel, layout: Layout, thriftiest: list[Remat]) -> None:
        """Remember what is short of least memory, for when nothing fits."""
        if self.best:
            return
        for remat in thriftiest:
            policy = self.policies[remat]
            memory = step_memory(model, layout, policy)
            if self.closest is None or memory.total < self.closest.memory.total:
                self.closest = self._predict(model, layout, remat, memory)

    def _consider(self, model: StepModel, splits: Splits) -> None:
        """Every split into shards and replicas that fits, with the least recomputation.

        Where that fills the chip, also with more of it. The host's memory instead of recomputation
        is a matter of time: both are predicted.
        """
        short = False
        for layout in splits:
            if short and layout.fsdp > 1:
                continue  # fewer shards need more memory still, but one has nothing to gather
            short, roomy = True, False
            for remat in self.policies:
                if roomy and remat is not Remat.OFFLOAD:
                    continue
                memory = self._fitting(model, layout, remat)
                if memory:
                    short = False
                    choice = self._predict(model, layout, remat, memory)
                    self._keep(choice)
                    roomy = choice.roomy
                    if remat not in RUNS_MATMULS_AGAIN and roomy:
                        break

    def _keep(self, choice: Choice) -> None:
        self.least = min(self.least, measure_of(self.minimize, choice))
        if measure_of(self.minimize, choice) <= EQUAL * self.least:
            self.near.append(choice)
        mesh = choice.mesh
        held = self.best.get(mesh)
        if held is None or self._rank(choice) < self._rank(held):
            self.best[mesh] = choice

    def _predict(
        self, model: StepModel, layout: Layout, remat: Remat, memory: StepMemory
    ) -> Choice:
        self.examined += 1
        step = model.step(layout, self.policies[remat])
        return Choice(cluster=model.cluster, layout=layout, remat=remat, step=step, memory=memory)

    def _models_on(self, chips: int) -> tuple[StepModel, ...]:
        """What predicts on each of the clusters whose slices have just so many chips."""
        found = self.models.get(chips)
        if found is None:
            found = self.models[chips] = tuple(
                self.model.on(cluster) for cluster in filled_by(self.cluster, chips)
            )
        return found
