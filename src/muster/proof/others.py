"""The next best layouts of a plan, for when the compiler has no answer for its own.

A plan lists alternatives, the best of other meshes first; one written by hand lists none, so the
planner is asked again. Either way each becomes a whole plan of its own, as `muster plan` makes it.
Where memory was short, the same layout comes first with more computed again, and of the others only
those that need less by the plan's count.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, cast

from muster.errors import MusterError
from muster.hardware import Cluster, parse_cluster
from muster.planner.build import make_plan
from muster.planner.choice import AXES, POLICIES, Restrictions
from muster.planner.plan_file import PlannedRun, planned_run
from muster.planner.trainable import layout_obstacles
from muster.proof.compiler import Compilation
from muster.proof.memory import memory_verdict, predicted_memory
from muster.roofline.remat import Remat, parse_remat

MOST_TRIED = 3
OTHER = "another layout"

type Chosen = tuple[Mapping[str, int], Remat, Cluster]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Another layout, and what the compiler made of it.

    Attributes:
        needed: bytes of one device, by the compiler; None where it did not say.
        usable: bytes that there are.
    """

    planned: PlannedRun
    compilation: Compilation
    passes: bool
    needed: int | None
    usable: int | None

    def to_json(self) -> dict[str, Any]:
        """One entry of `others` in `muster verify --json`."""
        return {
            "layout": self.planned.document["layout"],
            "remat": self.planned.remat.value,
            "status": self.compilation.status,
            "message": self.compilation.message,
            "passes": self.passes,
            "total": self.needed,
            "usable": self.usable,
            "predicted_step_seconds": self.planned.step_seconds,
        }


def try_others(
    planned: PlannedRun,
    compile_one: Callable[[PlannedRun], Compilation],
    *,
    most: int = MOST_TRIED,
    short_of_memory: bool = False,
) -> Iterator[Tried]:
    """Compile the next best layouts one after the other, up to one that passes.

    Args:
        planned: the plan that did not pass.
        compile_one: asks the compiler.
        most: layouts to try.
        short_of_memory: whether that is why it did not.
    """
    others = thriftier_plans(planned) if short_of_memory else other_plans(planned)
    for other in islice(others, most):
        tried = _judged(other, compile_one(other))
        yield tried
        if tried.passes:
            return


def _judged(planned: PlannedRun, done: Compilation) -> Tried:
    if done.memory is None:
        needed, usable = (done.needed or None), (done.usable or None)
        return Tried(planned=planned, compilation=done, passes=False, needed=needed, usable=usable)
    memory = memory_verdict(planned, done.memory, None)
    return Tried(
        planned=planned,
        compilation=done,
        passes=memory.fits,
        needed=memory.total,
        usable=memory.usable,
    )


def thriftier_plans(planned: PlannedRun) -> Iterator[PlannedRun]:
    """Plans that need less memory by the planner's count, the same layout first."""
    for other in _plans(planned, chain(_computing_more(planned), _choices(planned))):
        most = predicted_memory(planned).get("total", math.inf)
        if predicted_memory(other)["total"] < most:
            yield other


def other_plans(planned: PlannedRun) -> Iterator[PlannedRun]:
    """The next best layouts that can be trained, each as a plan; none twice, nor the plan's own."""
    yield from _plans(planned, _choices(planned))


def _computing_more(planned: PlannedRun) -> Iterator[Chosen]:
    """The plan's own layout with policies that compute more again."""
    ways = {axis: int(getattr(planned.layout, axis)) for axis in AXES}
    if planned.remat in POLICIES:
        for remat in POLICIES[POLICIES.index(planned.remat) + 1 :]:
            yield ways, remat, planned.cluster


def _plans(planned: PlannedRun, choices: Iterator[Chosen]) -> Iterator[PlannedRun]:
    seen = {_key(planned)}
    for fixed, remat, cluster in choices:
        try:
            other = plan_of(planned, fixed, remat, cluster)
        except MusterError:  # no such layout any more: an edited file
            continue
        obstacles = layout_obstacles(
            other.architecture, other.layout, other.workload.sequence_length
        )
        if _key(other) not in seen and next(obstacles, None) is None:
            seen.add(_key(other))
            yield other


def _key(planned: PlannedRun) -> tuple[object, ...]:
    return (planned.layout, planned.remat, planned.cluster.name)


def _choices(planned: PlannedRun) -> Iterator[Chosen]:
    """The alternatives that the plan lists; the planner's own where it lists none."""
    listed = planned.document.get("alternatives")
    if not isinstance(listed, list) or not listed:
        free = Restrictions(trainable=True)
        found = make_plan(
            planned.architecture, planned.cluster, planned.workload, restrictions=free
        )
        for choice in (found.choice, *found.alternatives):
            if choice.memory.fits:
                ways = {axis: int(getattr(choice.layout, axis)) for axis in AXES}
                yield ways, choice.remat, choice.cluster
        return
    for entry in listed:
        if (chosen := _listed(entry, planned)) is not None:
            yield chosen


def _listed(entry: object, planned: PlannedRun) -> Chosen | None:
    try:
        held = cast("Mapping[str, Any]", entry)
        ways = {axis: int(held["layout"].get(axis, 1)) for axis in AXES}
        if not _is_finite(held):
            return None
        cluster = parse_cluster(held["cluster"], constants=planned.cluster.chip.constants)
        return ways, parse_remat(held["remat"]), cluster
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MusterError):
        return None


def _is_finite(value: object) -> bool:
    """Whether every number in a document is."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def plan_of(
    planned: PlannedRun, fixed: Mapping[str, int], remat: Remat, cluster: Cluster
) -> PlannedRun:
    """A whole plan of the same run that holds a layout fixed.

    Raises:
        MusterError: no such layout.
    """
    restrictions = Restrictions(fixed=fixed, remat=remat)
    workload = replace(planned.workload, remat=remat.value)
    plan = make_plan(planned.architecture, cluster, workload, restrictions=restrictions)
    return planned_run(plan.to_json(), where=OTHER)
