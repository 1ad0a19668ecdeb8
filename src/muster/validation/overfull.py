"""Runs that are predicted not to fit although they ran: what of the memory would have to be less.

A run is counted under the first rule that frees all that is too much, so the counts add up.
"""

from collections.abc import Callable, Iterable

from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_memory import step_memory
from muster.roofline.step_time import StepModel
from muster.validation.memory import GOAL, RanScore
from muster.validation.predict import cluster_of, kernel_of, software_of
from muster.validation.setup import Setup

NOT_EXPLAINED = "not explained: no one term is as large as what is too much"


def overfull(ran: Iterable[RanScore]) -> dict[str, tuple[RanScore, ...]]:
    """The set-ups that are predicted not to fit, by why, the most frequent first."""
    found: dict[str, list[RanScore]] = {}
    for score in ran:
        if score.filled > 1:
            found.setdefault(why_overfull(score), []).append(score)
    parts = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        reason: tuple(sorted(scores, key=lambda each: -each.filled)) for reason, scores in parts
    }


def why_overfull(score: RanScore) -> str:
    """The first rule that frees enough."""
    return next((reason for reason, holds in RULES if holds(score)), NOT_EXPLAINED)


def _nearly(score: RanScore) -> bool:
    return score.filled <= 1 + GOAL


def _remat(score: RanScore) -> bool:
    """Whether it fits where all is computed again, and the row does not say exactly what was."""
    setup = score.group.setups[0]
    return not (setup.run.remat_policy and setup.remat.exact) and _fits_in_full(setup)


def _fits_in_full(setup: Setup) -> bool:
    software = software_of(setup)
    model = StepModel(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        attention=kernel_of(setup),
        software=software,
    )
    policy = remat_policy(Remat.FULL, whole_layer=software.whole_layer)
    return step_memory(model, setup.layout, policy).fits


def _sharded(score: RanScore) -> bool:
    """Whether it fits where every replica keeps its share of the state alone, as ZeRO-3 does."""
    setup, memory = score.group.setups[0], score.memory
    ways = setup.layout.data * setup.layout.sequence
    if setup.software != "megatron" or ways == 1:
        return False
    return _excess(score) <= (memory.params + memory.gradients + memory.optimizer) * (1 - 1 / ways)


def _gradients(score: RanScore) -> bool:
    """Whether gradients in bf16 would be enough, where float32 is taken."""
    setup = score.group.setups[0]
    narrow = setup.software == "megatron" and setup.workload.reduce_dtype == "f32"
    return narrow and _excess(score) <= score.memory.gradients / 2


def _experts(score: RanScore) -> bool:
    setup = score.group.setups[0]
    return setup.architecture.experts is not None and _excess(score) <= score.memory.activations


def _logits(score: RanScore) -> bool:
    return _excess(score) <= score.memory.logits


def _activations(score: RanScore) -> bool:
    return _excess(score) <= score.memory.activations


def _excess(score: RanScore) -> float:
    return score.memory.total - score.memory.usable


RULES: tuple[tuple[str, Callable[[RanScore], bool]], ...] = (
    (f"too much by no more than {GOAL:.0%}, the goal of the model itself", _nearly),
    ("its remat is not published or approximated; with everything computed again it fits", _remat),
    ("logits: a loss that is taken in parts keeps fewer", _logits),
    ("gradients in float32, Megatron's default: in bf16 it fits", _gradients),
    ("mixture of experts: fewer of the experts' activations kept than is predicted", _experts),
    (
        "every replica keeps all parameters and gradients: sharded over all of them it fits",
        _sharded,
    ),
    ("activations: fewer kept than its policy says", _activations),
)
