"""Build a plan: candidates, the first that fits, what it costs, and what to warn of."""

from dataclasses import replace
from itertools import islice

from muster.errors import BadInput
from muster.hardware import Cluster, Switched
from muster.models.architecture import Architecture
from muster.planner.advice import advice
from muster.planner.layout import Candidate, candidates
from muster.planner.memory import Fit, least_recomputation
from muster.planner.plan import Bound, Estimate, Plan
from muster.planner.rules import rules_of_thumb
from muster.roofline.flops import six_n, training_flops
from muster.roofline.params import ParamCounts, param_counts
from muster.roofline.training_time import TrainingTime, step_seconds, training_time
from muster.roofline.workload import Workload

DEFAULT_MFU = 0.4
ALTERNATIVES = 5


def make_plan(
    architecture: Architecture, cluster: Cluster, workload: Workload, *, mfu: float = DEFAULT_MFU
) -> Plan:
    """Plan the training of a model on a cluster.

    Args:
        architecture: the model.
        cluster: the chips.
        workload: batch, sequence, corpus, formats.
        mfu: model FLOPs utilization to assume, 6N convention, above 0 and up to 1.

    Raises:
        BadInput: no layout divides, such as a batch of fewer sequences than slices.
    """
    if not 0 < mfu <= 1:
        raise BadInput(f"an MFU of {mfu:g} is not between 0 and 1; 0.4 stands for 40%")
    ranked = candidates(architecture, cluster, workload)
    if not ranked:
        raise BadInput(_nothing_divides(cluster, workload))
    candidate, fit = _first_that_fits(architecture, cluster, workload, ranked)
    params = param_counts(architecture)
    planned = replace(workload, remat=fit.remat.value)
    estimate = _estimate(architecture, cluster, planned, params, candidate, fit, mfu)
    rules = rules_of_thumb(architecture, cluster, workload, params.trainable)
    return Plan(
        architecture=architecture,
        params=params,
        cluster=cluster,
        workload=planned,
        layout=fit.layout,
        candidate=candidate,
        estimate=estimate,
        rules=rules,
        alternatives=_alternatives(ranked, candidate),
        warnings=(
            *workload.warnings,
            *cluster.warnings,
            *architecture.notes,
            *advice(architecture, cluster, workload, candidate, fit, mfu),
        ),
    )


def _nothing_divides(cluster: Cluster, workload: Workload) -> str:
    return (
        f"{workload.batch_sequences:,} sequences do not split over {cluster.slices} slices; the "
        f"nearest batches are "
        f"{workload.batch_sequences // cluster.slices * cluster.slices or cluster.slices}seq and "
        f"{(workload.batch_sequences // cluster.slices + 1) * cluster.slices}seq"
    )


def _first_that_fits(
    architecture: Architecture, cluster: Cluster, workload: Workload, ranked: list[Candidate]
) -> tuple[Candidate, Fit]:
    """The best candidate whose memory suffices; if none does, the one that needs least."""
    best: tuple[Candidate, Fit] | None = None
    for candidate in ranked:
        fit = least_recomputation(architecture, cluster.chip, workload, candidate.layout)
        if fit.memory.fits:
            return candidate, fit
        if best is None or fit.memory.total < best[1].memory.total:
            best = candidate, fit
    assert best is not None
    return best


def _alternatives(ranked: list[Candidate], chosen: Candidate) -> tuple[Candidate, ...]:
    """The next best layouts on other numbers of FSDP or tensor ways than the chosen one."""
    others = (other for other in ranked if other.layout != chosen.layout)
    return tuple(islice(others, ALTERNATIVES))


def _estimate(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    params: ParamCounts,
    candidate: Candidate,
    fit: Fit,
    mfu: float,
) -> Estimate:
    chips, peak = fit.layout.chips_used, cluster.chip.bf16_flops
    per_token = six_n(params.active).total
    flops = training_flops(architecture, workload.sequence_length, causal=True, remat=fit.remat)
    step = step_seconds(
        flops_per_token=per_token,
        batch_tokens=workload.batch_tokens,
        chips=chips,
        peak_flops=peak,
        mfu=mfu,
    )
    run = _run(per_token, workload, chips=chips, peak=peak, mfu=mfu)
    rented = replace(run, chips=cluster.chips) if run else None
    price = cluster.chip.price_usd_per_hour
    return Estimate(
        flops_per_token=per_token,
        flops=flops,
        flops_per_step=per_token * workload.batch_tokens,
        train_flops=None if workload.train_tokens is None else per_token * workload.train_tokens,
        step_seconds=step,
        mfu=mfu,
        mfu_causal=mfu * flops.model_per_token / per_token,
        tokens_per_second_per_chip=workload.batch_tokens / step / chips,
        bound=_bound(cluster, candidate),
        compute_seconds=step * mfu,
        memory=fit.memory,
        train_seconds=run.seconds if run else None,
        train_days=run.days if run else None,
        chip_hours=rented.chip_hours if rented else None,
        cost_usd=rented.cost(price) if rented and price is not None else None,
    )


def _run(
    per_token: int, workload: Workload, *, chips: int, peak: float, mfu: float
) -> TrainingTime | None:
    if workload.train_tokens is None:
        return None
    total = per_token * workload.train_tokens
    return training_time(total, chips=chips, peak_flops=peak, mfu=mfu)


def _bound(cluster: Cluster, candidate: Candidate) -> Bound:
    if candidate.compute_bound:
        return "compute"
    if candidate.slowest == "dcn":
        return "dcn"
    network = cluster.chip.network
    if not isinstance(network, Switched):
        return "ici"
    inside = candidate.slowest == "tensor" or cluster.slice.chips <= network.domain_chips
    return "nvlink" if inside else "network"
