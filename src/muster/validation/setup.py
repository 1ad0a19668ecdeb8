"""From a row of text to everything that a prediction takes: model, cluster, workload, layout."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.roofline.flops import six_n
from muster.roofline.mfu import active_params
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.validation.clusters import read_cluster, read_power_watts
from muster.validation.layouts import Split, read_split
from muster.validation.measured import contradiction, step_seconds
from muster.validation.models import read_architecture, total_params
from muster.validation.remat_text import RematChoice, read_remat, share_from_flops
from muster.validation.runs import Run
from muster.validation.texts import (
    AttentionKernel,
    Formats,
    Software,
    knows_optimizer,
    narrow_moments,
    read_attention,
    read_formats,
    read_optimizer_ways,
    read_sequence_parallel,
    read_software,
)

PARAMS_TOLERANCE = 0.01
MAX_SEQUENCE = 10**8
FAR_APART = 1.1  # a step time and tokens/s that differ by more are not of one run
OUTER_LAYERS = 2  # embedding and head, which some pipelines count as layers


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One published run, ready to be predicted.

    Attributes:
        run: the row.
        architecture: the model.
        cluster: chips and their network, as the row's topology states it.
        workload: sizes and formats.
        layout: ways of every mesh axis, in chips.
        micro_batch_sequences: sequences of one microbatch of one data-parallel rank.
        remat: what is kept and what runs again.
        attention: a fused kernel, or scores in memory.
        software: who wrote the step.
        formats: number formats.
        sequence_parallel: whether activations between blocks are split over the tensor ways.
        optimizer_ways: over how many chips the optimizer's state of one shard of the parameters is
            split besides (ZeRO-1); 1 for plain data parallelism.
        power_watts: a chip's power limit, where the hardware's name states one.
        step_seconds: measured.
        remarks: what was taken for granted.
        contradictions: what in the row disagrees with itself, and changes no prediction.
        impossible: what does change it, so that the row cannot be scored.
    """

    run: Run
    architecture: Architecture
    cluster: Cluster
    workload: Workload
    layout: Layout
    micro_batch_sequences: float
    remat: RematChoice
    attention: AttentionKernel
    software: Software
    formats: Formats
    sequence_parallel: bool
    optimizer_ways: int
    power_watts: float | None
    step_seconds: float
    remarks: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The row's id."""
        return self.run.id

    @property
    def virtual_stages(self) -> int:
        """Chunks of layers that each pipeline stage holds (interleaving); 1 for none."""
        return self.layout.virtual_stages

    @property
    def fsdp_over_slices(self) -> bool:
        """Whether `layout.slice` shards parameters instead of replicating them."""
        return self.layout.shards_over_slices


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    run: Run
    reason: str

    @property
    def id(self) -> str:
        """The row's id."""
        return self.run.id


def setup_of(run: Run, *, incomplete: bool = False) -> Setup | Skipped:
    """Read one row.

    Args:
        run: the row.
        incomplete: try also rows that are not marked complete.
    """
    reason = _unusable(run, incomplete=incomplete)
    if reason:
        return Skipped(run=run, reason=reason)
    model = read_architecture(run)
    if isinstance(model, str):
        return Skipped(run=run, reason=model)
    cluster = read_cluster(run)
    if isinstance(cluster, str):
        return Skipped(run=run, reason=cluster)
    software = read_software(run)
    split = read_split(run, cluster[0], software)
    if isinstance(split, str):
        return Skipped(run=run, reason=split)
    setup = _checked(_assemble(run, model[0], cluster[0], split, software))
    if isinstance(setup, str):
        return Skipped(run=run, reason=setup)
    return replace(setup, remarks=(*model[1], *cluster[1], *setup.remarks))


def _unusable(run: Run, *, incomplete: bool) -> str | None:
    if run.problems:
        return run.problems[0]
    if run.complete is not True and not incomplete:
        return "not complete: its source leaves out part of the set-up"
    if run.seq_len is None:
        return "sequence length not stated"
    if run.seq_len > MAX_SEQUENCE:
        return f"a sequence of {run.seq_len} tokens is longer than muster plans"
    return None


def _assemble(
    run: Run, architecture: Architecture, cluster: Cluster, split: Split, software: Software
) -> Setup | str:
    formats = read_formats(run, software)
    if formats is None:
        return f"compute dtype {run.compute_dtype!r} is not understood"
    share = share_from_flops(f"{run.mfu_convention} {run.notes}", run.measured_mfu_percent)
    remat = read_remat(run.remat_policy, xla=software == "xla", share=share)
    if remat is None:
        return f"remat policy {run.remat_policy[:60]!r} is not understood"
    seconds = step_seconds(run, split.batch_sequences)
    if seconds is None:
        return "no step time, and nothing that it follows from"
    if not knows_optimizer(run):
        return f"optimizer {run.optimizer[:60]!r} is not understood"
    attention, attention_remark = read_attention(run)
    context = split.layout.sequence if split.layout.fsdp == 1 else 1
    data_ways = split.layout.slice * split.layout.data * split.layout.expert * context
    optimizer_ways, optimizer_remark = read_optimizer_ways(run, data_ways)
    remat_remark = "" if run.remat_policy else "remat not stated: none"
    remarks = (
        *split.remarks,
        attention_remark,
        optimizer_remark,
        narrow_moments(run),
        remat_remark,
    )
    workload = Workload(
        sequence_length=run.seq_len or 1,
        batch_sequences=split.batch_sequences,
        param_dtype=formats.parameters,
        compute_dtype=formats.compute,
        optimizer_dtype=formats.moments,
        gather_dtype=formats.gathered,
        reduce_dtype=formats.reduced,
        master_copy=formats.master_copy,
        remat=remat.policy.value,
    )
    return Setup(
        run=run,
        architecture=architecture,
        cluster=cluster,
        workload=workload,
        layout=replace(split.layout, shards_optimizer=optimizer_ways > 1),
        micro_batch_sequences=split.micro_batch_sequences,
        remat=remat,
        attention=attention,
        software=software,
        formats=formats,
        sequence_parallel=read_sequence_parallel(run, software),
        optimizer_ways=optimizer_ways,
        power_watts=read_power_watts(run.hardware),
        step_seconds=seconds,
        remarks=tuple(remark for remark in remarks if remark),
        contradictions=(*_contradictions(run, architecture), *_rates(run, split)),
        impossible=split.contradictions,
    )


def _checked(setup: Setup | str) -> Setup | str:
    """The set-up, unless something in its row cannot be so."""
    impossible = next(_impossible(setup), None) if isinstance(setup, Setup) else None
    return f"contradiction: {impossible}" if impossible else setup


def _impossible(setup: Setup) -> Iterator[str]:
    """What of a row cannot be so, whatever its source meant: such a row is no measurement."""
    run, layout, layers = setup.run, setup.layout, setup.architecture.num_layers
    yield from setup.impossible
    pieces = layout.virtual_stages
    if pieces > 1 and layout.stage == 1:
        yield f"{pieces} virtual stages without a pipeline"
    if layout.stage * pieces > layers + OUTER_LAYERS:
        yield f"{layout.stage} stages of {pieces} pieces for {layers} layers"
    faster = _times_the_peak(setup)
    if faster > 1:
        yield f"a step of {setup.step_seconds:.3g} s would take {faster:.3g} times the chips' peak"
    rate = run.measured_tokens_per_s_per_chip
    if run.measured_step_seconds and rate and run.n_chips:
        ratio = setup.workload.batch_tokens / (rate * run.n_chips * run.measured_step_seconds)
        if not 1 / FAR_APART <= ratio <= FAR_APART:
            yield contradiction(run, setup.workload.batch_sequences) or "step and tokens/s"


def _times_the_peak(setup: Setup) -> float:
    """The 6N FLOPs of the measured step over what the chips could do in their narrowest format."""
    cluster = setup.cluster
    flops = six_n(active_params(setup.architecture)).total * setup.workload.batch_tokens
    peak = cluster.chips * max(cluster.chip.peak_flops.values())
    return flops / (peak * setup.step_seconds)


def _rates(run: Run, split: Split) -> tuple[str, ...]:
    """How step time and tokens/s disagree."""
    disagreement = contradiction(run, split.batch_sequences)
    return (disagreement,) if disagreement else ()


def _contradictions(run: Run, architecture: Architecture) -> tuple[str, ...]:
    found = []
    counted = total_params(architecture) / 1e9
    stated = [each for each in (run.params_billion, run.params_billion_recomputed) if each]
    if stated and not any(abs(counted / each - 1) <= PARAMS_TOLERANCE for each in stated):
        found.append(f"the dims give {counted:.4g}e9 parameters, the row says {stated[0]:g}e9")
    return tuple(found)
