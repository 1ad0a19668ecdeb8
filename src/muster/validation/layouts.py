"""A run's parallel degrees -> a `Layout`, checked against its chips and its batch.

Every source's product dp * fsdp * tp * cp * pp is the number of chips (of JAX devices for 7x, two a
chip); `ep` lies inside the data and context ranks and multiplies nothing. The global batch is:

    MaxText, tpu-recipes, Pax        per_device_batch * devices (tensor ways too) * grad_accum
    Megatron, NeMo, vTrain, BLOOM    micro-batch * (dp * fsdp) * grad_accum
    torchtitan, FSDP                 local batch * (dp * fsdp) * grad_accum (context ways not)

so that `grad_accum` is the number of microbatches. In torchtitan a pipeline cuts the local batch
into as many microbatches as it has stages (its default; the published pair of schedules, 100 and
128 tokens/s, is that bubble's ratio: 15/8 over 11.5/8).
"""

import math
from dataclasses import dataclass, replace

from muster.hardware import Cluster
from muster.sharding.mesh import Layout
from muster.validation.runs import Run
from muster.validation.texts import Software


@dataclass(frozen=True, kw_only=True)
class Split:
    """The layout of one run and what `Layout` has no word for.

    Attributes:
        layout: in chips, as muster counts; expert ways are taken out of the data ways.
        micro_batch_sequences: sequences of one microbatch of one data-parallel rank.
        batch_sequences: sequences of one global batch.
        remarks: what was taken for granted.
        contradictions: what in the row disagrees with itself.
    """

    layout: Layout
    micro_batch_sequences: float
    batch_sequences: int
    remarks: tuple[str, ...]
    contradictions: tuple[str, ...]


def read_split(run: Run, cluster: Cluster, software: Software) -> Split | str:
    """The layout, or why there is none."""
    filled = _without_blanks(run, cluster)
    if isinstance(filled, str):
        return filled
    run, blanks = filled
    placed = _place(run, cluster)
    if isinstance(placed, str):
        return placed
    devices = cluster.slice.devices * cluster.slices
    ranks = (run.dp or 1) * (run.fsdp or 1)
    batch = _batch(run, ranks, devices, software)
    if isinstance(batch, str):
        return batch
    if placed.expert == 1:
        ranks = placed.batch_ways  # in chips, not devices
    return Split(
        layout=replace(
            placed,
            microbatches=batch.microbatches,
            virtual_stages=run.virtual_pp or (2 if _interleaved(run) else 1),
            shards_over_slices=cluster.slices > 1 and (run.dp or 1) % cluster.slices != 0,
        ),
        micro_batch_sequences=batch.sequences / (ranks * batch.microbatches),
        batch_sequences=batch.sequences,
        remarks=(*blanks, *batch.remarks),
        contradictions=batch.contradictions,
    )


def _without_blanks(run: Run, cluster: Cluster) -> tuple[Run, tuple[str, ...]] | str:
    """The run with one blank of dp and fsdp as the chips leave it."""
    if run.dp is not None and run.fsdp is not None:
        return run, ()
    if run.dp is None and run.fsdp is None:
        return "layout not stated: dp and fsdp are blank"
    if run.fsdp is None:
        return replace(run, fsdp=1), ("fsdp not stated: 1",)
    others = math.prod(ways or 1 for ways in (run.fsdp, run.tp, run.cp, run.pp))
    dp, rest = divmod(cluster.chips, others)
    if rest or not dp:
        return f"layout not stated: dp is blank, and {others} of {cluster.chips} leave no whole one"
    return replace(run, dp=dp), (f"dp not stated: {dp}",)


def _place(run: Run, cluster: Cluster) -> Layout | str:
    """The ways of every axis, in chips."""
    dp, fsdp, tp, cp, pp, ep = (
        ways or 1 for ways in (run.dp, run.fsdp, run.tp, run.cp, run.pp, run.ep)
    )
    product = dp * fsdp * tp * cp * pp
    per_chip = cluster.chip.devices_per_chip
    if per_chip > 1 and product == cluster.chips * per_chip:
        cut = _chips_of_devices(dp, fsdp, cp, per_chip)
        if cut is None:
            return f"{product} devices of {per_chip} a chip do not fold into chips"
        dp, fsdp, cp = cut
    elif product != cluster.chips:
        return (
            f"contradiction: dp {dp} x fsdp {fsdp} x tp {tp} x cp {cp} x pp {pp} = {product}, "
            f"not {cluster.chips} chips"
        )
    between = _between_slices(dp, fsdp, cluster.slices)
    if between is None:
        return f"dp {dp} and fsdp {fsdp} do not divide over {cluster.slices} slices"
    folded = _expert(*between, cp, tp, ep)
    if folded is None:
        return f"contradiction: ep {ep} does not divide the data, context and tensor ways"
    expert, data, fsdp, cp = folded
    return Layout(
        slice=cluster.slices, stage=pp, data=data, fsdp=fsdp, sequence=cp, expert=expert, tensor=tp
    )


def _between_slices(dp: int, fsdp: int, slices: int) -> tuple[int, int] | None:
    """Data and fsdp ways inside one slice."""
    if dp % slices == 0:
        return dp // slices, fsdp
    return (dp, fsdp // slices) if fsdp % slices == 0 else None


def _interleaved(run: Run) -> bool:
    return (run.pp or 1) > 1 and "interleaved" in run.notes.lower()


def _chips_of_devices(dp: int, fsdp: int, cp: int, per_chip: int) -> tuple[int, int, int] | None:
    """Ways counted in devices, in chips: a chip's devices act as one in the first that divides."""
    if fsdp % per_chip == 0:
        return dp, fsdp // per_chip, cp
    if dp % per_chip == 0:
        return dp // per_chip, fsdp, cp
    return (dp, fsdp, cp // per_chip) if cp % per_chip == 0 else None


def _expert(data: int, fsdp: int, cp: int, tp: int, ep: int) -> tuple[int, int, int, int] | None:
    """Expert ways taken out of data ways, then fsdp, then context.

    Expert ways that also span the tensor ways (Megatron with one expert-tensor way) are as many as
    the other ways give; the rest of them stays in `tensor`, which shards experts too.
    """
    if ep == 1:
        return 1, data, fsdp, cp
    expert = 1
    rest = ep
    sizes = []
    for ways in (data, fsdp, cp):
        part = math.gcd(ways, rest)
        sizes.append(ways // part)
        expert *= part
        rest //= part
    return (expert, sizes[0], sizes[1], sizes[2]) if tp % rest == 0 else None


@dataclass(frozen=True, kw_only=True)
class _Batch:
    sequences: int
    microbatches: int
    remarks: tuple[str, ...]
    contradictions: tuple[str, ...]


def _batch(run: Run, ranks: int, devices: int, software: Software) -> _Batch | str:
    """How the global batch is cut."""
    units = devices if software == "xla" else ranks
    local, accumulate = run.per_device_batch, run.grad_accum
    batch = run.global_batch_sequences or round((local or 0) * units * (accumulate or 1))
    if batch < 1:
        return "batch not stated"
    remarks = []
    if run.global_batch_sequences is None:
        remarks.append(f"global batch not stated: {batch} sequences from the local one")
    if local is None and accumulate is None:
        local = next((size for size in (4, 2) if batch % (ranks * size) == 0), 1)
        remarks.append(f"micro-batch not stated: {local:g}")
    if accumulate is None:
        accumulate = max(1, round(batch / (units * (local or 1))))
        remarks += [f"microbatches not stated: {accumulate}"] if accumulate > 1 else []
    contradictions = _batch_contradictions(batch, local, accumulate, (units, ranks, devices))
    pp = run.pp or 1
    if software == "torch" and pp > 1:
        accumulate *= math.gcd(pp, max(1, round(local or 1)))
        remarks.append(f"pipeline microbatches not stated: {accumulate}")
    return _Batch(
        sequences=batch,
        microbatches=accumulate,
        remarks=tuple(remarks),
        contradictions=contradictions,
    )


def _batch_contradictions(
    batch: int, local: float | None, accumulate: int, units: tuple[int, ...]
) -> tuple[str, ...]:
    """Whether the local batch, by any of the conventions, gives the global one."""
    if batch < accumulate:
        return (f"{accumulate} microbatches of {batch} sequences",)
    if local is None or any(
        abs(local * each * accumulate - batch) <= 0.01 * batch for each in units
    ):
        return ()
    return (
        f"{local:g} sequences x {units[0]} ways x {accumulate} accumulations "
        f"is not the global batch {batch}",
    )
