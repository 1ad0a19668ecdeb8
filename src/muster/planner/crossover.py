"""What would change the answer: other batches and more chips, each searched as a plan of its own.

The book's rules name a batch and a number of chips at which traffic stops hiding. Here the same is
looked for in the step model: by halving or doubling until the best is bound by something else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.binding import Bound, bound_of
from muster.planner.choice import EQUAL, Choice, Restrictions
from muster.planner.search import search
from muster.planner.sizes import scaled_batch, scaled_cluster
from muster.roofline.workload import Workload

MOST_STEPS = 3
MOST_DOUBLINGS = 2  # of the chips: beyond, a model of one batch says little
# Steps whose search predicts more than this many are few: they take a large part of a second each.
LONG_SEARCH = 1_500
# Twice the chips that are less than so many times as fast: there a batch stops scaling.
SCALES = 1.5


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best at another batch or on other chips."""

    workload: Workload
    choice: Choice
    bound: Bound


@dataclass(frozen=True, kw_only=True)
class Crossovers:
    """What was found on the way to another answer.

    Attributes:
        batches: the best at batches halved or doubled until it is compute-bound no more, or at
            last; the one that was asked about is not among them.
        chips: the best on chips doubled until twice of them are not half as fast again.
    """

    batches: tuple[Point, ...]
    chips: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    architecture: Architecture
    restrictions: Restrictions

    def at(self, cluster: Cluster, workload: Workload) -> Point | None:
        try:
            found = search(
                self.architecture,
                cluster,
                workload,
                self.restrictions,
                within=EQUAL,
            )
        except BadInput:
            return None
        if found.chosen is None:
            return None
        bound = bound_of(found.chosen.cluster, found.chosen)
        return Point(workload=workload, choice=found.chosen, bound=bound)


def crossovers(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions,
    choice: Choice,
    *,
    examined: int,
) -> Crossovers:
    """Search around a plan.

    Args:
        architecture: the model.
        cluster: the chips that were asked about.
        workload: batch, sequence and formats that were asked about.
        restrictions: what is held.
        choice: the best.
        examined: steps that the search for the best predicted.
    """
    steps = MOST_STEPS if examined <= LONG_SEARCH else 1
    asked = _Asked(architecture=architecture, restrictions=restrictions)
    whole = replace(asked, restrictions=replace(restrictions, max_chips=None))
    computes = bound_of(choice.cluster, choice) == "compute"
    return Crossovers(
        batches=tuple(_batches(asked, cluster, workload, steps, computes=computes)),
        chips=tuple(_chips(whole, workload, choice, min(steps, MOST_DOUBLINGS))),
    )


def _batches(
    asked: _Asked, cluster: Cluster, workload: Workload, steps: int, *, computes: bool
) -> Iterator[Point]:
    for power in range(1, steps + 1):
        scaled = scaled_batch(workload, (0.5 if computes else 2.0) ** power, cluster)
        point = asked.at(cluster, scaled) if scaled else None
        if point is None:
            return
        yield point
        if (point.bound == "compute") is not computes:
            return


def _chips(asked: _Asked, workload: Workload, choice: Choice, steps: int) -> Iterator[Point]:
    before = choice
    for power in range(1, steps + 1):
        cluster = scaled_cluster(choice.cluster, 2.0**power)
        point = asked.at(cluster, workload) if cluster else None
        if point is None or point.choice.layout.chips_used <= before.layout.chips_used:
            return
        yield point
        if before.seconds < SCALES * point.choice.seconds:
            return
        before = point.choice
