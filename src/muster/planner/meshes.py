"""Every legal mesh of a cluster, and its microbatches, pieces of stages, shards and replicas."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from muster.hardware import Cluster, Switched, slice_of
from muster.hardware.shapes import shapes_with
from muster.models.architecture import Architecture
from muster.planner.choice import Restrictions
from muster.planner.constraints import (
    divisors,
    legal_expert_ways,
    legal_microbatches,
    legal_sequence_ways,
    legal_stages,
    legal_tensor_ways,
    shard_obstacle,
)
from muster.planner.trainable import layout_obstacles
from muster.roofline.pipeline import legal_pieces
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

MOST_VIRTUAL_STAGES = 8


@dataclass(frozen=True, kw_only=True)
class Meshes:
    """The legal meshes of one model, batch and cluster under what the user holds fixed.

    Attributes:
        zero_1: whether replicas share out the optimizer's state between them.
    """

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    restrictions: Restrictions
    zero_1: bool

    def __iter__(self) -> Iterator[Layout]:
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
        architecture, network = self.architecture, self.cluster.chip.network
        switched = isinstance(network, Switched)
        near = min(limit, network.domain_chips) if isinstance(network, Switched) else limit
        for tensor in self._allowed("tensor", legal_tensor_ways(architecture, near)):
            ways = legal_expert_ways(architecture, limit // tensor)
            for expert in self._allowed("expert", ways):
                pieces = legal_sequence_ways(
                    architecture, self.workload, limit // (tensor * expert)
                )
                for sequence in self._allowed("sequence", pieces):
                    most = limit // (tensor * expert * sequence) if switched else 1
                    most = 1 if self.restrictions.trainable else most
                    for stage in self._allowed("stage", legal_stages(architecture, most)):
                        yield tensor, expert, sequence, stage

    def _allowed(self, axis: str, ways: Iterable[int]) -> list[int]:
        return [each for each in ways if self.restrictions.allows(axis, each)]

    def pieces(self, mesh: Layout) -> tuple[int, ...]:
        """How many pieces each stage may hold: one, or a few that deal the layers out evenly."""
        return legal_pieces(self.architecture.num_layers, mesh.stage, most=MOST_VIRTUAL_STAGES)

    def microbatches(self, mesh: Layout) -> list[int]:
        """Every number of microbatches, most first: no fewer than the stages."""
        legal = legal_microbatches(self.workload.batch_sequences // mesh.batch_ways)
        fixed = self.restrictions.fixed.get("microbatches")
        if fixed is not None:
            return [fixed] if fixed in legal and fixed >= mesh.stage else []
        return list(reversed(legal[bisect_left(legal, mesh.stage) :]))

    def splits(self, replicated: Layout) -> Iterator[Layout]:
        """A mesh's batch ways as shards and replicas, most shards first.

        In a pipeline FSDP would gather every weight again for every microbatch, so there replicas
        share only the optimizer's state (ZeRO-1), as Megatron's do.
        """
        allows = self.restrictions.allows
        for fsdp in reversed(divisors(replicated.data)) if replicated.stage == 1 else (1,):
            data = replicated.data // fsdp
            if not (allows("fsdp", fsdp) and allows("data", data)):
                continue
            shares = self.zero_1 and data > 1
            layout = replace(replicated, fsdp=fsdp, data=data, shards_optimizer=shares)
            if self.restrictions.trainable and self._untrainable(layout):
                continue
            shards, asked = layout.weight_shards, self.restrictions.weight_shards
            if shards <= asked or not shard_obstacle(self.architecture, self.cluster.chip, shards):
                yield layout

    def _untrainable(self, layout: Layout) -> bool:
        length = self.workload.sequence_length
        return next(layout_obstacles(self.architecture, layout, length), None) is not None


def schedules(mesh: Layout, pieces: int, microbatches: Iterable[int]) -> list[int]:
    """The numbers of microbatches for so many pieces a stage: interleaved ones in whole rounds."""
    return [each for each in microbatches if pieces == 1 or each % mesh.stage == 0]


def filled_by(cluster: Cluster, chips: int) -> tuple[Cluster, ...]:
    """The clusters whose slices have just so many chips: the given shape, else smaller ones.

    A slice is what can be booked, so a layout that leaves chips idle runs on a smaller slice: of
    any legal shape that is a part of the given one, or the most cube-like, which comes first.
    """
    if chips == cluster.slice.chips:
        return (cluster,)
    rule, host, given = cluster.chip.slices, cluster.chip.chips_per_host, cluster.slice.shape
    if rule is not None:
        legal = shapes_with(rule, chips)
        shapes = [*legal[:1], *(each for each in legal[1:] if _is_part(each, given))]
    else:
        shapes = [] if chips % host and host % chips else [(chips,)]
    return tuple(replace(cluster, slice=slice_of(cluster.chip, shape)) for shape in shapes)


def _is_part(shape: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """Whether a box fits into another, turned as it may be."""
    return all(small <= large for small, large in zip(sorted(shape), sorted(of), strict=True))
