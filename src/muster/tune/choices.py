"""What can be varied of a plan's layout without changing what it computes.

The step's own choices, the compiler's flags, and which axes of the torus each mesh axis takes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

from muster.hardware import Torus as TorusNetwork
from muster.planner.plan_file import PlannedRun
from muster.planner.step_choices import STEP, AttentionBlocks, StepChoices
from muster.sharding.placing import Torus, placements

UNROLLED = (2, 4)
CHUNKS = (1024, 2048, 4096)  # tokens
MOST_PLACEMENTS = 4


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A compiler option with a value to try.

    Attributes:
        what: what it does, one line.
        needs: options that it does not work without.
    """

    name: str
    value: str
    what: str = ""
    needs: Mapping[str, str] = field(default_factory=dict, hash=False)

    def on(self, planned: PlannedRun) -> PlannedRun:
        """The plan with it."""
        options = {**planned.compiler_options, **self.needs, self.name: self.value}
        return with_options(planned, options)

    def __str__(self) -> str:
        """As on the compiler's command line, without dashes."""
        return f"{self.name}={self.value}"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One of the step's own choices, set to another value."""

    name: str
    step: StepChoices

    def on(self, planned: PlannedRun) -> PlannedRun:
        """The plan with it."""
        value = getattr(self.step, self.name)
        return with_step(planned, replace(planned.step, **{self.name: value}))

    def __str__(self) -> str:
        """Name and value."""
        return f"{self.name.replace('_', ' ')}: {getattr(self.step, self.name)}"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Other physical axes of the torus for the mesh axes of one layout."""

    torus: Torus = field(hash=False)
    name: str = "torus"

    def on(self, planned: PlannedRun) -> PlannedRun:
        """The plan with it; the planner's estimates stay those of the rule's placement."""
        layout = cast("Mapping[str, object]", planned.document["layout"])
        written = {name: list(axes) for name, axes in self.torus.items()}
        document = dict(planned.document) | {"layout": {**layout, "torus": written}}
        return replace(planned, torus=self.torus, document=document)

    def __str__(self) -> str:
        """Each mesh axis with its physical ones."""
        named = (f"{name} {' '.join(axes)}" for name, axes in self.torus.items())
        return f"torus: {', '.join(named)}"


type Change = Flag | Knob | Placement


def with_options(planned: PlannedRun, options: Mapping[str, str]) -> PlannedRun:
    """The plan with these compiler options and no others."""
    document = dict(planned.document) | {"compiler": {"options": dict(options)}}
    return replace(planned, document=document)


def with_step(planned: PlannedRun, step: StepChoices) -> PlannedRun:
    """The plan with the step written so; what is all defaults is not written down."""
    document = {key: value for key, value in planned.document.items() if key != STEP}
    if written := step.to_json():
        document[STEP] = written
    return replace(planned, step=step, document=document)


def with_changes(planned: PlannedRun, changes: Iterable[Change]) -> PlannedRun:
    """The plan with one change after the other."""
    for change in changes:
        planned = change.on(planned)
    return planned


def placements_of(planned: PlannedRun) -> Iterator[Placement]:
    """Other placements of its layout, for a slice that the layout fills."""
    cluster, layout = planned.cluster, planned.layout
    if not isinstance(cluster.chip.network, TorusNetwork):
        return
    if layout.chips_per_slice == cluster.slice.chips:
        for torus in islice(placements(cluster.slice.shape, layout), MOST_PLACEMENTS):
            yield Placement(torus=torus)


def knobs(planned: PlannedRun) -> Iterator[Knob]:
    """Other values of the step's own choices, those that mostly gain more first."""
    for blocks in _blocks(planned):
        yield Knob(name="attention_blocks", step=StepChoices(attention_blocks=blocks))
    if planned.layout.weight_shards > 1:
        other = StepChoices(gathers_at_once=not planned.gathers_at_once)
        yield Knob(name="gathers_at_once", step=other)
    layers = planned.architecture.num_layers
    for number in UNROLLED:
        if number <= layers and number != planned.step.layers_unrolled:
            yield Knob(name="layers_unrolled", step=StepChoices(layers_unrolled=number))
    tokens = planned.device_tokens
    for chunk in (*(each for each in CHUNKS if each < tokens), tokens):
        if chunk != min(tokens, planned.loss_chunk_tokens):
            yield Knob(name="loss_chunk_tokens", step=StepChoices(loss_chunk_tokens=chunk))


def _blocks(planned: PlannedRun) -> Iterator[AttentionBlocks]:
    """Blocks of whole and half rows, up to what VMEM holds of each kernel.

    The compiler's cycles leave kernels out and the timeline times them by their shapes, which
    counts what blocks on the diagonal multiply in vain and what a block loads.
    """
    row = planned.workload.sequence_length
    if planned.layout.sequence > 1:  # a chip holds an early and a late piece of each row
        row //= 2 * planned.layout.sequence
    for size in (1024, 2048, 256):
        if size <= row:
            blocks = AttentionBlocks(
                queries=size,
                keys=size,
                keys_computed=min(size, 1024),
                backward_queries=size,
                backward_keys=size,
                backward_keys_computed=min(size, 1024),
                dq_queries=size,
                dq_keys=size,
            )
            if blocks != planned.step.attention_blocks:
                yield blocks
    yield replace(planned.step.attention_blocks, fused_backward=True)
