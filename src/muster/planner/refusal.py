"""Why what a user holds fixed leaves no legal layout, and the nearest that would.

The reason is the rule that is broken. What is named as legal comes from listing every legal layout
of this model, batch and cluster with the least of the fixes let go, so none of it is refused next.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from muster.hardware import Cluster, Switched
from muster.models.architecture import Architecture, Experts
from muster.planner.choice import AXES, Restrictions
from muster.planner.constraints import (
    MOST_NAMED,
    SHORTEST_PIECE,
    legal_expert_ways,
    legal_sequence_ways,
    legal_stages,
    nearest_of,
    recurrent_layers,
    tensor_obstacles,
)
from muster.planner.meshes import Meshes, filled_by
from muster.planner.sizes import chips_text
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

MAX_CHIPS = "--max-chips"
NAMES = {
    "stage": "stages",
    "microbatches": "microbatches",
    MAX_CHIPS: MAX_CHIPS,
} | {axis: f"{axis} ways" for axis in ("data", "fsdp", "sequence", "expert", "tensor")}
MOST_COMBINATIONS = 3
MOST_REASONS = 2


def refusal(
    architecture: Architecture, cluster: Cluster, workload: Workload, restrictions: Restrictions
) -> str:
    """One line: what is not legal, which rules it breaks, and the nearest legal values."""
    asked = _Asked(
        architecture=architecture, cluster=cluster, workload=workload, restrictions=restrictions
    )
    fixed = [f"{axis}={ways}" for axis, ways in restrictions.fixed.items()]
    if restrictions.max_chips:
        fixed.append(f"{MAX_CHIPS} {restrictions.max_chips}")
    held = f" with {' '.join(fixed)}" if fixed else ""
    reasons = list(dict.fromkeys(asked.reasons()))[:MOST_REASONS]
    usual = "no layout has these ways at once" if held else "its batch and heads split over none"
    why = "; ".join(reasons) or usual
    nearest = asked.nearest()
    line = f"no legal layout of {architecture.name} on {cluster.name}{held}: {why}"
    return f"{line}; {nearest}" if nearest else line


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What was asked for."""

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    restrictions: Restrictions

    @cached_property
    def held(self) -> Mapping[str, int]:
        """All that is fixed, and how many chips there may be."""
        fixed = {axis: self.restrictions.fixed[axis] for axis in AXES if self.fixes(axis)}
        most = self.restrictions.max_chips
        return {**fixed, MAX_CHIPS: most} if most else fixed

    def fixes(self, axis: str) -> bool:
        """Whether an axis is held."""
        return axis in self.restrictions.fixed

    def nearest(self) -> str | None:
        """The nearest legal values, with the fewest of the fixes changed."""
        for count in range(1, len(self.held) + 1):
            found = {
                freed: values
                for freed in itertools.combinations(self.held, count)
                if (values := self._legal(freed))
            }
            if found and count == 1:
                return self._each(found)
            if found:
                return self._together(*next(iter(found.items())))
        return None

    def _each(self, found: Mapping[tuple[str, ...], set[tuple[int, ...]]]) -> str:
        """Any one of the fixes changed."""
        lines = []
        for (axis,), values in found.items():
            legal = tuple(sorted(value for (value,) in values))
            if axis == MAX_CHIPS:
                lines.append(f"{MAX_CHIPS} of {legal[0]:,} or more")
            else:
                which = "nearest legal" if len(legal) > MOST_NAMED else "legal"
                lines.append(f"{which} {NAMES[axis]}: {nearest_of(legal, self.held[axis])}")
        rest = "with the rest held, " if len(self.held) > 1 else ""
        return rest + ", or ".join(lines)

    def _together(self, freed: tuple[str, ...], values: set[tuple[int, ...]]) -> str:
        """Several changed at once: in combinations, as not all of their values go together."""
        near = sorted(values, key=lambda each: self._distance(freed, each))[:MOST_COMBINATIONS]
        combinations = (
            " ".join(f"{axis}={value}" for axis, value in zip(freed, each, strict=True))
            for each in near
        )
        return f"nearest legal: {', or '.join(combinations)}"

    def _distance(self, freed: tuple[str, ...], values: tuple[int, ...]) -> float:
        pairs = zip(freed, values, strict=True)
        return sum(abs(math.log(value / self.held[axis])) for axis, value in pairs)

    def _legal(self, freed: tuple[str, ...]) -> set[tuple[int, ...]]:
        """The values that some axes have in all legal layouts where they alone are free."""
        fixed = {k: v for k, v in self.restrictions.fixed.items() if k not in freed}
        most = None if MAX_CHIPS in freed else self.restrictions.max_chips
        restrictions = replace(self.restrictions, fixed=fixed, max_chips=most)
        return {
            tuple(
                layout.chips_used if axis == MAX_CHIPS else getattr(layout, axis) for axis in freed
            )
            for layout in self._layouts(restrictions, microbatches="microbatches" in freed)
        }

    def _layouts(self, restrictions: Restrictions, *, microbatches: bool) -> Iterator[Layout]:
        """Every legal layout; of microbatches one number unless they are asked for."""
        meshes = Meshes(
            architecture=self.architecture,
            cluster=self.cluster,
            workload=self.workload,
            restrictions=restrictions,
            zero_1=False,
        )
        books: dict[int, bool] = {}
        for mesh in meshes:
            chips = mesh.chips_per_slice
            if chips not in books:
                books[chips] = bool(filled_by(self.cluster, chips))
            if not books[chips]:
                continue
            for split in meshes.splits(mesh):
                numbers = meshes.microbatches(mesh)
                for m in numbers if microbatches else numbers[:1]:
                    yield replace(split, microbatches=m)

    def reasons(self) -> Iterator[str]:
        """Every rule that what is held breaks, by itself first."""
        yield from self._of_the_model()
        yield from self._of_the_batch()
        yield from self._of_the_chips()

    def _of_the_model(self) -> Iterator[str]:
        architecture, network = self.architecture, self.cluster.chip.network
        ways = self.restrictions.fixed.get
        tensor, expert = ways("tensor", 1), ways("expert", 1)
        sequence, stage = ways("sequence", 1), ways("stage", 1)
        for obstacle in tensor_obstacles(architecture, tensor):
            yield obstacle.message
        if isinstance(network, Switched) and tensor > network.domain_chips:
            yield f"tensor={tensor} leaves the scale-up domain of {network.domain_chips} GPUs"
        if expert not in legal_expert_ways(architecture, expert):
            yield self._experts(expert)
        if sequence not in legal_sequence_ways(architecture, self.workload, sequence):
            yield self._sequence(sequence)
        if stage > 1 and not isinstance(network, Switched):
            yield f"stage={stage}: pipelines are planned on GPUs alone"
        elif stage not in legal_stages(architecture, stage):
            yield f"{architecture.num_layers} layers do not make {stage} stages"

    def _experts(self, ways: int) -> str:
        counts = sorted(
            {
                layer.mlp.num_experts
                for layer, _ in self.architecture.layer_groups
                if isinstance(layer.mlp, Experts)
            }
        )
        if not counts:
            return f"{self.architecture.name} has no experts to split {ways} ways"
        return f"{' and '.join(map(str, counts))} experts do not split {ways} ways"

    def _sequence(self, ways: int) -> str:
        recurrent, layers = recurrent_layers(self.architecture), self.architecture.num_layers
        if recurrent:
            return (
                f"sequences stay whole, not cut {ways} ways: {recurrent} of {layers} layers are "
                f"recurrent"
            )
        return (
            f"a sequence of {self.workload.sequence_length:,} is cut into equal pieces of "
            f"{SHORTEST_PIECE} tokens or more, not {ways}"
        )

    def _of_the_batch(self) -> Iterator[str]:
        ways = self.restrictions.fixed.get
        batch = ways("data", 1) * ways("fsdp", 1) * ways("expert", 1)
        stage, microbatches = ways("stage", 1), ways("microbatches", 1)
        sequences = self.workload.batch_sequences // self.cluster.slices
        each = " of each slice" if self.cluster.slices > 1 else ""
        if sequences % batch:
            yield f"{sequences:,} sequences{each} do not split {batch} ways"
        elif sequences % (batch * microbatches):
            over = f" over {batch} ways" if batch > 1 else ""
            yield f"{sequences:,} sequences{each}{over} do not make {microbatches} microbatches"
        if self.fixes("microbatches") and microbatches < stage:
            yield f"{stage} stages need {stage} microbatches or more, not {microbatches}"
        if stage > 1 and ways("fsdp", 1) > 1:
            yield "in a pipeline replicas share the optimizer's state (ZeRO-1): data ways, not fsdp"

    def _of_the_chips(self) -> Iterator[str]:
        cluster, most = self.cluster, self.restrictions.max_chips
        ways = math.prod(self.restrictions.fixed.get(axis, 1) for axis in AXES[:-1])
        chips = cluster.slice.chips
        if most and most < cluster.slices:
            yield f"{cluster.slices} slices take a chip each or more, not {most}"
        elif most and ways <= chips and ways * cluster.slices > most:
            yield f"these ways are {ways * cluster.slices:,} chips of the {most:,} that may be used"
        elif most and not any(
            filled_by(cluster, size) for size in range(1, most // cluster.slices + 1)
        ):
            few = chips_text(most // cluster.slices)
            yield f"no slice of {cluster.chip.id} has as few as {few}"
        if ways > chips:
            yield f"these ways are {ways:,} chips of a slice of {chips:,}"
        elif not any(filled_by(cluster, size) for size in range(ways, chips + 1, ways)):
            yield f"no part of {cluster.slice.name} that is a slice has a multiple of {ways} chips"
