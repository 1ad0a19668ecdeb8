"""Search: every legal layout of a cluster, pruned by bounds, ranked by predicted step time.

    for every tensor, expert, sequence, stage ways that the model allows
        for every batch ways that divide the sequences, most chips first
            stop where even perfect math on so few chips is slower than the best so far
            for every split of them into shards and replicas
                the fewest microbatches, and the least recomputation, that fit

Nothing is sampled: what is left out is either illegal (`planner.constraints`) or bounded away. The
order of equals is time, then memory, then simplicity (fewer axes).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from muster.errors import BadInput, UnknownName
from muster.hardware import Cluster, Switched, slice_of
from muster.hardware.shapes import shapes_with
from muster.models.architecture import Architecture
from muster.planner.constraints import (
    divisors,
    legal_expert_ways,
    legal_microbatches,
    legal_sequence_ways,
    legal_stages,
    legal_tensor_ways,
    shard_obstacle,
)
from muster.roofline.flops import training_flops
from muster.roofline.pipeline import stage_layers
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import FLASH, AttentionKernel, Software, default_software
from muster.roofline.step_memory import StepMemory, stage_memory, step_memory
from muster.roofline.step_time import StepModel, StepTime
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

type Minimize = Literal["time", "cost", "chips"]

AXES = ("stage", "data", "fsdp", "sequence", "expert", "tensor", "microbatches")
# From most memory to least, and but for the last from least computed again to most.
POLICIES = (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL, Remat.OFFLOAD)
RUNS_MATMULS_AGAIN = (Remat.OUTPUTS, Remat.FULL)
THRIFTIEST = (Remat.FULL, Remat.OFFLOAD)
MOST_VIRTUAL_STAGES = 8
# A layout this much slower than the best is not worth a line among the alternatives.
WORTH_SHOWING = 1.15


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
        return _axes(self.layout)


@dataclass(frozen=True, kw_only=True)
class Restrictions:
    """What the user holds fixed.

    Attributes:
        fixed: ways of an axis that must be just so.
        remat: the only policy to consider.
        max_chips: most chips of the cluster to use.
    """

    fixed: Mapping[str, int] = field(default_factory=dict)
    remat: Remat | None = None
    max_chips: int | None = None

    def __post_init__(self) -> None:
        """Refuse axes that do not exist."""
        for axis in self.fixed:
            if axis not in AXES:
                raise UnknownName("mesh axis", axis, AXES)

    def allows(self, axis: str, ways: int) -> bool:
        """Whether an axis may have so many ways."""
        return self.fixed.get(axis, ways) == ways

    @property
    def policies(self) -> tuple[Remat, ...]:
        """The policies to consider, least recomputation first."""
        return (self.remat,) if self.remat else POLICIES


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        ranked: choices that fit, best first; one for each set of ways.
        examined: layouts whose step was predicted.
        closest: where nothing fits, the choice that is short of least memory.
    """

    ranked: tuple[Choice, ...]
    examined: int
    closest: Choice | None


def search(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions | None = None,
    *,
    minimize: Minimize = "time",
    software: Software | None = None,
    attention: AttentionKernel = FLASH,
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

    Raises:
        BadInput: the batch does not split over the slices.
    """
    if workload.batch_sequences % cluster.slices:
        raise BadInput(_uneven(cluster, workload))
    held = restrictions or Restrictions()
    program = (software or default_software(cluster.chip), attention)
    return _Search(architecture, cluster, workload, held, minimize, program).run()


def measure(minimize: Minimize, chips: int, seconds: float) -> float:
    """What is to be least: seconds, chip-seconds or chips."""
    return {"time": seconds, "cost": chips * seconds, "chips": float(chips)}[minimize]


def _uneven(cluster: Cluster, workload: Workload) -> str:
    slices, sequences = cluster.slices, workload.batch_sequences
    below, above = sequences // slices * slices, (sequences // slices + 1) * slices
    nearest = f"{below}seq and {above}seq" if below else f"{above}seq"
    return f"{sequences:,} sequences do not split over {slices} slices; nearest batches: {nearest}"


@dataclass(frozen=True, kw_only=True)
class _Models:
    """What predicts time and memory on the cluster that a layout fills."""

    cluster: Cluster
    steps: StepModel


def filled_by(cluster: Cluster, chips: int) -> Cluster | None:
    """The cluster whose slices have just so many chips: the given shape, else the most cube-like.

    A slice is what can be booked, so a layout that leaves chips idle runs on a smaller slice; None
    where none of that size is legal.
    """
    if chips == cluster.slice.chips:
        return cluster
    rule, host = cluster.chip.slices, cluster.chip.chips_per_host
    if rule is not None:
        shapes = shapes_with(rule, chips)
        return replace(cluster, slice=slice_of(cluster.chip, shapes[0])) if shapes else None
    if chips % host and host % chips:
        return None
    return replace(cluster, slice=slice_of(cluster.chip, (chips,)))


class _Search:
    """One search: the models that it asks, and the best that it has seen."""

    def __init__(
        self,
        architecture: Architecture,
        cluster: Cluster,
        workload: Workload,
        restrictions: Restrictions,
        minimize: Minimize,
        program: tuple[Software, AttentionKernel],
    ) -> None:
        self.minimize: Minimize = minimize
        self.architecture = architecture
        self.cluster = cluster
        self.workload = workload
        self.restrictions = restrictions
        self.models: dict[int, _Models | None] = {}
        self.software, self.attention = software, _ = program
        self.zero_1 = not software.shards_replicas
        self.policies = {
            remat: remat_policy(remat, whole_layer=software.whole_layer)
            for remat in restrictions.policies
            if remat is not Remat.OFFLOAD or cluster.chip.kind == "tpu" or restrictions.remat
        }
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
        least_work = self._least_work()
        lightest = next(iter(self.policies.values()))
        direction = -1 if self.minimize == "time" else 1
        order = sorted(self._meshes(), key=lambda m: (direction * m.chips_used, _axes(m)))
        for mesh in order:
            if self._beyond(mesh, least_work * self._unevenness(mesh.stage) / mesh.chips_used):
                continue
            if self._models_on(mesh.chips_per_slice) is None:
                continue
            for pieces in self._pieces(mesh):
                for split in self._microbatched(pieces):
                    if self._beyond(split, self._least_math(split, lightest)):
                        continue
                    sharded = next(self._splits(split), None)
                    if sharded is None or not self._can_fit(sharded):
                        break  # fewer microbatches need more memory still
                    if self._beyond(split, self._least_seconds(sharded, lightest)):
                        continue
                    policy = self._lightest_policy(sharded)
                    if not self._beyond(split, self._least_seconds(sharded, policy)):
                        self._consider(split)
        ranked = tuple(sorted(self.best.values(), key=self._rank))
        return Found(ranked=ranked, examined=self.examined, closest=self.closest)

    def _least_work(self) -> float:
        """Chip-seconds of a step's math at the best rate that anything reaches."""
        flops = training_flops(self.architecture, self.workload.sequence_length).model
        model = self._step_model(self.cluster)
        rate = max(model.unit.flops, model.head_unit.flops, model.attention_rate)
        return flops * self.workload.batch_sequences / rate

    def _unevenness(self, stage: int) -> float:
        """At least how much more the fullest stage does than the mean one.

        Embedding and head count as two layers, the most that `stage_layers` deals them for.
        """
        layers = self.architecture.num_layers
        fullest, _ = stage_layers(layers, stage)
        return max(1.0, (fullest - 1) * stage / layers, fullest * stage / (layers + 2))

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
        """Whether a bound on a layout's time shows that it is not worth showing."""
        bound = measure(self.minimize, layout.chips_used, least_seconds)
        return bound > self.least * WORTH_SHOWING

    def _can_fit(self, sharded: Layout) -> bool:
        """Whether any split into shards and replicas could fit, whatever is computed again.

        Memory falls as shards grow, so the largest legal number of them tells for all.
        """
        thriftiest = [remat for remat in THRIFTIEST if remat in self.policies]
        if any(self._fitting(sharded, remat) for remat in thriftiest or self.policies):
            return True
        self._short_of_memory(sharded, thriftiest or list(self.policies))
        return False

    def _lightest_policy(self, sharded: Layout) -> RematPolicy:
        """The least recomputation that any split into shards and replicas could fit with."""
        lightest = next(remat for remat in self.policies if self._fitting(sharded, remat))
        # What waits in the host's memory is not computed again.
        if lightest in RUNS_MATMULS_AGAIN and Remat.OFFLOAD in self.policies:
            return self.policies[Remat.OFFLOAD]
        return self.policies[lightest]

    def _fitting(self, layout: Layout, remat: Remat) -> StepMemory | None:
        """The memory of the fullest stage where it fits, on the host too.

        The first stage mostly is the fullest. Where the host's memory is not known, it suffices.
        """
        model, policy = self._models_for(layout).steps, self.policies[remat]
        memory = stage_memory(model, layout, policy, 0)
        if memory.fits and layout.stage > 1:
            memory = step_memory(model, layout, policy)
        return memory if memory.fits and memory.host <= self.host_bytes else None

    def _short_of_memory(self, layout: Layout, thriftiest: list[Remat]) -> None:
        """Remember what is short of least memory, for when nothing fits."""
        if self.best:
            return
        model = self._models_for(layout).steps
        for remat in thriftiest:
            policy = self.policies[remat]
            memory = step_memory(model, layout, policy)
            if self.closest is None or memory.total < self.closest.memory.total:
                self.closest = self._predict(layout, remat, policy, memory)

    def _least_math(self, split: Layout, policy: RematPolicy) -> float:
        """A bound that takes microseconds: what the fullest stage computes, traffic left out."""
        model = self._models_for(split).steps
        sequences = self.workload.batch_sequences / (split.batch_ways * split.microbatches)
        layers = model.layers(sequences, split, policy)
        fullest, _ = stage_layers(self.architecture.num_layers, split.stage, split.virtual_stages)
        share = fullest / self.architecture.num_layers
        return split.microbatches * share * (layers.matmuls + layers.moved)

    def _least_seconds(self, sharded: Layout, policy: RematPolicy) -> float:
        """A bound on every split: what the weights' and gradients' traffic takes is left out.

        The split with most shards keeps and updates the fewest parameters.
        """
        self.examined += 1
        step = self._models_for(sharded).steps.step(sharded, policy)
        return step.total - step.fsdp - step.data - step.host

    def _consider(self, replicated: Layout) -> None:
        """Every split into shards and replicas that fits, with the least recomputation.

        The host's memory instead of recomputation is a matter of time: both are predicted.
        """
        for layout in self._splits(replicated):
            fits = False
            for remat, policy in self.policies.items():
                if fits and remat is not Remat.OFFLOAD:
                    continue
                memory = self._fitting(layout, remat)
                if memory:
                    fits = True
                    self._keep(self._predict(layout, remat, policy, memory))
                    if remat not in RUNS_MATMULS_AGAIN:
                        break
            if not fits:
                return  # fewer shards need more memory still

    def _keep(self, choice: Choice) -> None:
        chips = choice.layout.chips_used
        self.least = min(self.least, measure(self.minimize, chips, choice.seconds))
        mesh = replace(choice.layout, microbatches=1, virtual_stages=1)
        held = self.best.get(mesh)
        if held is None or self._rank(choice) < self._rank(held):
            self.best[mesh] = choice

    def _predict(
        self, layout: Layout, remat: Remat, policy: RematPolicy, memory: StepMemory
    ) -> Choice:
        self.examined += 1
        models = self._models_for(layout)
        step = models.steps.step(layout, policy)
        return Choice(cluster=models.cluster, layout=layout, remat=remat, step=step, memory=memory)

    def _models_for(self, layout: Layout) -> _Models:
        models = self._models_on(layout.chips_per_slice)
        assert models is not None, "a mesh without a slice was not filtered out"
        return models

    def _models_on(self, chips: int) -> _Models | None:
        """The models of the cluster that so many chips a slice fill; None if no slice has them."""
        if chips not in self.models:
            cluster = filled_by(self.cluster, chips)
            self.models[chips] = None
            if cluster:
                self.models[chips] = _Models(cluster=cluster, steps=self._step_model(cluster))
        return self.models[chips]

    def _step_model(self, cluster: Cluster) -> StepModel:
        return StepModel(
            self.architecture,
            cluster,
            self.workload,
            attention=self.attention,
            software=self.software,
        )

    def _splits(self, replicated: Layout) -> Iterator[Layout]:
        """A mesh's batch ways as shards and replicas, most shards first.

        In a pipeline FSDP would gather every weight again for every microbatch, so there replicas
        share only the optimizer's state (ZeRO-1), as Megatron's do.
        """
        allows = self.restrictions.allows
        for fsdp in reversed(divisors(replicated.data)):
            data = replicated.data // fsdp
            if not (allows("fsdp", fsdp) and allows("data", data)):
                continue
            if fsdp > 1 and replicated.stage > 1:
                continue
            shares = self.zero_1 and data > 1
            layout = replace(replicated, fsdp=fsdp, data=data, shards_optimizer=shares)
            if not shard_obstacle(self.architecture, self.cluster.chip, layout.weight_shards):
                yield layout

    def _meshes(self) -> Iterator[Layout]:
        """Every legal mesh, its batch ways still all replicas, without microbatches."""
        limit = self.cluster.slice.chips
        if self.restrictions.max_chips:
            limit = min(limit, self.restrictions.max_chips // self.cluster.slices)
        per_slice = self.workload.batch_sequences // self.cluster.slices
        for tensor, expert, sequence, stage in self._inner(limit):
            if per_slice % expert:
                continue
            for batch in divisors(per_slice // expert):
                if batch * tensor * expert * sequence * stage > limit:
                    break
                yield Layout(
                    slice=self.cluster.slices,
                    stage=stage,
                    data=batch,
                    sequence=sequence,
                    expert=expert,
                    tensor=tensor,
                )

    def _inner(self, limit: int) -> Iterator[tuple[int, int, int, int]]:
        """Tensor, expert, sequence and stage ways that the model and the user allow."""
        architecture, allows = self.architecture, self.restrictions.allows
        network = self.cluster.chip.network
        switched = isinstance(network, Switched)
        near = min(limit, network.domain_chips) if isinstance(network, Switched) else limit
        for tensor in filter_allowed(allows, "tensor", legal_tensor_ways(architecture, near)):
            ways = legal_expert_ways(architecture, limit // tensor)
            for expert in filter_allowed(allows, "expert", ways):
                pieces = legal_sequence_ways(self.workload, limit // (tensor * expert))
                for sequence in filter_allowed(allows, "sequence", pieces):
                    most = limit // (tensor * expert * sequence) if switched else 1
                    stages = legal_stages(architecture, most)
                    for stage in filter_allowed(allows, "stage", stages):
                        yield tensor, expert, sequence, stage

    def _pieces(self, mesh: Layout) -> Iterator[Layout]:
        """The mesh with every number of pieces that its stages can hold."""
        if mesh.stage == 1:
            yield mesh
            return
        for pieces in _virtual_stages(self.architecture.num_layers, mesh.stage):
            yield replace(mesh, virtual_stages=pieces)

    def _microbatched(self, mesh: Layout) -> Iterator[Layout]:
        """The mesh with every number of microbatches, most first; interleaved, in whole rounds."""
        local = self.workload.batch_sequences // mesh.batch_ways
        for microbatches in reversed(legal_microbatches(local)):
            if not self.restrictions.allows("microbatches", microbatches):
                continue
            if microbatches < mesh.stage or (mesh.virtual_stages > 1 and microbatches % mesh.stage):
                continue
            yield replace(mesh, microbatches=microbatches)


def filter_allowed(
    allows: Callable[[str, int], bool], axis: str, ways: Iterable[int]
) -> Iterator[int]:
    """The ways of an axis that the user's restrictions leave."""
    return (each for each in ways if allows(axis, each))


def _virtual_stages(layers: int, stage: int) -> tuple[int, ...]:
    """How many pieces each stage may hold: all that divide its layers, up to a few."""
    if layers % stage:
        return (1,)
    return tuple(v for v in divisors(layers // stage) if v <= MOST_VIRTUAL_STAGES)


def _axes(layout: Layout) -> int:
    ways = (layout.stage, layout.data, layout.fsdp, layout.sequence, layout.expert, layout.tensor)
    return sum(size > 1 for size in ways)
