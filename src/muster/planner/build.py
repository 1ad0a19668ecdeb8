"""Build a plan: search, take the best by what is to be least, and say what it costs and why."""

from collections.abc import Iterator
from dataclasses import replace

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.models.numerics import untrainable
from muster.planner.advice import advice
from muster.planner.binding import bound_of
from muster.planner.booking import bookable
from muster.planner.closed_form import candidates
from muster.planner.explain import Question, reasons
from muster.planner.nearest import nearest_changes
from muster.planner.plan import Estimate, Plan
from muster.planner.refusal import refusal
from muster.planner.rules import rules_of_thumb
from muster.planner.search import Choice, Found, Minimize, Restrictions, search
from muster.planner.trainable import training_obstacles
from muster.roofline.flops import six_n, training_flops
from muster.roofline.mfu import active_params
from muster.roofline.params import param_counts
from muster.roofline.remat import Remat
from muster.roofline.software import default_software
from muster.roofline.training_time import step_seconds, time_of_steps
from muster.roofline.workload import Workload

ALTERNATIVES = 5
LEAST_MFU = 0.001


def make_plan(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    *,
    mfu: float | None = None,
    restrictions: Restrictions | None = None,
    minimize: Minimize = "time",
) -> Plan:
    """Plan the training of a model on a cluster.

    Args:
        architecture: the model.
        cluster: the chips.
        workload: batch, sequence, corpus, formats.
        mfu: model FLOPs utilization to assume, 6N convention; None to predict the step.
        restrictions: what the user holds fixed.
        minimize: time of a step, cost of a run, or chips.

    Raises:
        BadInput: no layout divides, such as a batch of fewer sequences than slices.
    """
    if mfu is not None and not LEAST_MFU <= mfu <= 1:
        raise BadInput(f"an MFU of {mfu:g} is not between {LEAST_MFU} and 1; 0.4 stands for 40%")
    restrictions = restrictions or Restrictions()
    found = search(architecture, cluster, workload, restrictions, minimize=minimize)
    choice = found.chosen or found.closest
    if choice is None:
        raise BadInput(refusal(architecture, cluster, workload, restrictions))
    obstacles = tuple(training_obstacles(architecture, choice.layout, workload.sequence_length))
    params = param_counts(architecture)
    fewer = bool(restrictions.max_chips or restrictions.fixed) or minimize != "time"
    planned = replace(workload, remat=choice.remat.value)
    alternatives = tuple(_alternatives(found, choice))
    closed_form = next(iter(candidates(architecture, cluster, workload)), None)
    rules = rules_of_thumb(architecture, cluster, workload, params.trainable)
    nearest = (
        ()
        if choice.memory.fits
        else nearest_changes(architecture, cluster, workload, restrictions, choice)
    )
    booked = bookable(architecture, workload, restrictions, choice, minimize)
    return Plan(
        architecture=architecture,
        params=params,
        cluster=cluster,
        workload=planned,
        choice=choice,
        estimate=_estimate(architecture, cluster, planned, choice, mfu, fewer=fewer),
        rules=rules,
        closed_form=closed_form,
        alternatives=alternatives,
        examined=found.examined,
        reasons=tuple(
            reasons(
                Question(
                    architecture=architecture,
                    cluster=cluster,
                    workload=workload,
                    restrictions=restrictions,
                    minimize=minimize,
                    found=found,
                    choice=choice,
                    alternatives=alternatives,
                    rules=rules,
                    closed_form=closed_form,
                )
            )
        ),
        warnings=tuple(
            dict.fromkeys(
                (
                    *advice(
                        architecture,
                        cluster,
                        workload,
                        choice,
                        restrictions,
                        minimize=minimize,
                        nearest=nearest,
                        bookable=booked,
                    ),
                    *workload.warnings,
                    *cluster.warnings,
                    *architecture.notes,
                )
            )
        ),
        nearest=nearest,
        bookable=booked,
        obstacles=obstacles,
        trainable=_trainable(architecture, cluster, workload, restrictions, found, minimize)
        if obstacles and not untrainable(architecture)
        else None,
    )


def _trainable(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions,
    found: Found,
    minimize: Minimize,
) -> Choice | None:
    """The best choice that `muster train` can carry out."""
    length = workload.sequence_length
    for choice in found.ranked:
        if next(training_obstacles(architecture, choice.layout, length), None) is None:
            return choice
    held = replace(restrictions, trainable=True)
    others = search(architecture, cluster, workload, held, minimize=minimize)
    return next(iter(others.ranked), None)


def _alternatives(found: Found, chosen: Choice) -> Iterator[Choice]:
    """The best of the other meshes, one for all splits of its batch ways."""
    seen = {_mesh(chosen)}
    for other in found.ranked:
        if len(seen) > ALTERNATIVES:
            return
        if _mesh(other) not in seen:
            seen.add(_mesh(other))
            yield other


def _mesh(choice: Choice) -> tuple[int, ...]:
    layout = choice.layout
    return (layout.stage, layout.sequence, layout.expert, layout.tensor, layout.chips_used)


def _estimate(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    assumed_mfu: float | None,
    *,
    fewer: bool,
) -> Estimate:
    # An MFU that is assumed is of all the chips that were asked about, unless fewer were asked for;
    # a predicted step is of those that it fills.
    all_of_them = assumed_mfu is not None and not fewer
    chips = cluster.chips if all_of_them else choice.layout.chips_used
    peak = cluster.chip.bf16_flops
    per_token = six_n(active_params(architecture)).total
    again = choice.remat
    if again is Remat.OUTPUTS and default_software(cluster.chip).whole_layer:
        again = Remat.FULL  # whole layers run again, also what was kept
    flops = training_flops(architecture, workload.sequence_length, causal=True, remat=again)
    at_peak = step_seconds(
        flops_per_token=per_token,
        batch_tokens=workload.batch_tokens,
        chips=chips,
        peak_flops=peak,
        mfu=1.0,
    )
    if assumed_mfu and assumed_mfu * flops.hardware_per_token > per_token:
        raise BadInput(_out_of_reach(assumed_mfu, per_token / flops.hardware_per_token, choice))
    step = at_peak / assumed_mfu if assumed_mfu else choice.seconds
    mfu = at_peak / step
    count = workload.steps
    run = time_of_steps(count, step, chips=chips) if count is not None else None
    price = cluster.chip.price_usd_per_hour
    return Estimate(
        flops_per_token=per_token,
        flops=flops,
        flops_per_step=per_token * workload.batch_tokens,
        train_flops=None if workload.train_tokens is None else per_token * workload.train_tokens,
        step_seconds=step,
        at_peak_seconds=at_peak,
        mfu=mfu,
        mfu_causal=mfu * flops.model_per_token / per_token,
        assumed=assumed_mfu is not None,
        chips=chips,
        tokens_per_second_per_chip=workload.batch_tokens / step / chips,
        bound=bound_of(cluster, choice),
        train_seconds=run.seconds if run else None,
        train_days=run.days if run else None,
        chip_hours=run.chip_hours if run else None,
        cost_usd=run.cost(price) if run and price is not None else None,
    )


def _out_of_reach(mfu: float, most: float, choice: Choice) -> str:
    return (
        f"an MFU of {mfu:.0%} (6N) is out of reach: with attention and remat {choice.remat} the "
        f"chips would do more than their peak; at full rate it is {most:.0%}"
    )
