"""What can be varied of a plan without changing what it computes: step knobs and compiler flags."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.planner.plan_file import PlannedRun
from muster.planner.step_choices import STEP, AttentionBlocks, StepChoices

UNROLLED = (2, 4)
CHUNKS = (1024, 2048, 4096)  # tokens


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


type Change = Flag | Knob


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


def knobs(planned: PlannedRun) -> Iterator[Knob]:
    """Other values of the step's own choices, those that mostly gain more first."""
    for blocks in _blocks(planned):
        yield Knob(name="attention_blocks", step=StepChoices(attention_blocks=blocks))
    layers = planned.architecture.num_layers
    for number in UNROLLED:
        if number <= layers and number != planned.step.layers_unrolled:
            yield Knob(name="layers_unrolled", step=StepChoices(layers_unrolled=number))
    tokens = _tokens_of_a_chip(planned)
    for chunk in CHUNKS:
        if chunk <= tokens and chunk != planned.step.loss_chunk_tokens:
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


def _tokens_of_a_chip(planned: PlannedRun) -> int:
    layout, workload = planned.layout, planned.workload
    rows = workload.batch_sequences // (layout.batch_ways * layout.microbatches)
    return rows * workload.sequence_length // layout.sequence
