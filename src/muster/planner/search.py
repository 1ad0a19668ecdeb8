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
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy, remat_policy
from muster.roofline.software import default_software
from muster.roofline.step_memory import StepMemory, step_memory
from muster.roofline.step_time import StepModel, StepTime
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

type Minimize = Literal["time", "cost", "chips"]

AXES = ("stage", "data", "fsdp", "sequence", "expert", "tensor", "microbatches")
# From most memory to least, and but for the last from least computed again to most.
POLICIES = (Remat.NONE, Remat.MINIMAL, Remat.OUTPUTS, Remat.FULL, Remat.OFFLOAD)
MOST_VIRTUAL_STAGES = 8
# A layout this much slower than the best is not worth a line among the alternatives.
WORTH_SHOWING = 1.25


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
) -> Found:
    """Find the layouts with the least predicted step time, cost or chips.

    Args:
        architecture: the model.
        cluster: the chips; fewer are used where the batch does not divide over them.
        workload: batch, sequence and formats.
        restrictions: what is held fixed.
        minimize: a step's seconds, its chip-seconds, or the chips that it takes.

    Raises:
        BadInput: the batch does not split over the slices.
    """
    if workload.batch_sequences % cluster.slices:
        raise BadInput(_uneven(cluster, workload))
    held = restrictions or Restrictions()
    return _Search(architecture, cluster, workload, held, minimize).run()


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
    ) -> None:
        self.minimize: Minimize = minimize
        self.architecture = architecture
        self.cluster = cluster
        self.workload = workload
        self.restrictions = restrictions
        self.models: dict[int, _Models | None] = {}
        software = default_software(cluster.chip)
        self.zero_1 = not software.shards_replicas
        self.policies = {
            remat: remat_policy(remat, whole_layer=software.whole_layer)
            for remat in restrictions.policies
            if remat is not Remat.OFFLOAD or cluster.chip.kind == "tpu" or restrictions.remat
        }
        self.best: dict[Layout, Choice] = {}
        self.least = math.inf
        self.closest: Choice | None = None
        self.examined = 0

    def run(self) -> Found:
        """Consider every mesh that could still be near the best."""
        flops = training_flops(self.architecture, self.workload.sequence_length).model
        least_work = flops * self.workload.batch_sequences / self.cluster.chip.bf16_flops
        direction = -1 if self.minimize == "time" else 1
        order = sorted(self._meshes(), key=lambda m: (direction * m.chips_used, _axes(m)))
        for mesh in order:
            if self._beyond(mesh, least_work / mesh.chips_used):
                continue
            if self._models_on(mesh.chips_per_slice) is None:
                continue
            for split in self._microbatched(mesh):
                policy = self._lightest_policy(split)
                if policy and not self._beyond(split, self._least_seconds(split, policy)):
                    self._consider(split)
        ranked = tuple(sorted(self.best.values(), key=self._rank))
        return Found(ranked=ranked, examined=self.examined, closest=self.closest)

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

    def _lightest_policy(self, replicated: Layout) -> RematPolicy | None:
        """The least recomputation that any split into shards and replicas could fit with.

        Memory falls as shards grow, so the largest legal number of them tells for all.
        """
        layout = next(self._splits(replicated), None)
        if layout is None:
            return None
        model = self._models_for(layout).steps
        thriftiest = max(self.policies, key=POLICIES.index)
        least = step_memory(model, layout, self.policies[thriftiest])
        if not least.fits:
            if self.closest is None or least.total < self.closest.memory.total:
                policy = self.policies[thriftiest]
                self.closest = self._predict(layout, thriftiest, policy, least)
            return None
        return next(
            policy for policy in self.policies.values() if step_memory(model, layout, policy).fits
        )

    def _least_seconds(self, replicated: Layout, policy: RematPolicy) -> float:
        """A bound on every split: what the weights' and gradients' traffic takes is left out."""
        self.examined += 1
        step = self._models_for(replicated).steps.step(replicated, policy)
        return step.total - step.fsdp - step.data - step.host

    def _consider(self, replicated: Layout) -> None:
        """Every split into shards and replicas that fits, with the least recomputation."""
        for layout in self._splits(replicated):
            model = self._models_for(layout).steps
            for remat, policy in self.policies.items():
                memory = step_memory(model, layout, policy)
                if memory.fits:
                    self._keep(self._predict(layout, remat, policy, memory))
                    break
            else:
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
                steps = StepModel(self.architecture, cluster, self.workload)
                self.models[chips] = _Models(cluster=cluster, steps=steps)
        return self.models[chips]

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
                    stages = legal_stages(architecture, self.cluster.slice.chips, most)
                    for stage in filter_allowed(allows, "stage", stages):
                        yield tensor, expert, sequence, stage

    def _microbatched(self, mesh: Layout) -> Iterator[Layout]:
        """The mesh with every number of microbatches; with stages, interleaved as well."""
        local = self.workload.batch_sequences // mesh.batch_ways
        for microbatches in legal_microbatches(local):
            if not self.restrictions.allows("microbatches", microbatches):
                continue
            if mesh.stage == 1:
                yield replace(mesh, microbatches=microbatches)
            elif microbatches >= mesh.stage:
                for pieces in _virtual_stages(self.architecture.num_layers, mesh.stage):
                    if pieces == 1 or microbatches % mesh.stage == 0:
                        yield replace(mesh, microbatches=microbatches, virtual_stages=pieces)


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
