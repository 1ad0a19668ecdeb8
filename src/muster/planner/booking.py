"""Which clusters to ask a vendor for: slices that can be scheduled, and that the batch fills."""

from collections.abc import Iterator
from dataclasses import replace
from heapq import nsmallest
from math import gcd, prod

from muster.errors import BadInput
from muster.hardware import Cluster, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.choice import EQUAL, Choice, Minimize, Restrictions
from muster.planner.search import search
from muster.roofline.workload import Workload

NEAREST_SLICES = 2
MOST_PIECES = 8


def schedulable(cluster: Cluster) -> bool:
    """Whether slices of this size can be asked for; all GPUs can."""
    rule = cluster.chip.slices
    return rule is None or cluster.slice.chips <= prod(rule.max_schedulable_shape)


def bookable(
    architecture: Architecture,
    workload: Workload,
    restrictions: Restrictions,
    choice: Choice,
    minimize: Minimize,
) -> Choice | None:
    """The best on as many chips in the fewest slices that can be scheduled.

    None where the slices of the choice can be, or where nothing fits such slices.
    """
    cluster, rule = choice.cluster, choice.cluster.chip.slices
    if rule is None or schedulable(cluster):
        return None
    for pieces in range(2, MOST_PIECES + 1):
        chips, rest = divmod(cluster.slice.chips, pieces)
        shapes = () if rest else shapes_with(rule, chips)
        if not shapes:
            continue
        smaller = replace(
            cluster, slice=slice_of(cluster.chip, shapes[0]), slices=pieces * cluster.slices
        )
        found = _best(architecture, smaller, workload, restrictions, minimize)
        if schedulable(smaller) and found:
            return found
    return None


def filled_cluster(
    architecture: Architecture, cluster: Cluster, workload: Workload, choice: Choice
) -> Choice | None:
    """The best on another size near the given one, where that leaves no chip idle."""
    for other in _sizes(cluster, workload, choice.cluster):
        found = _best(architecture, other, workload, Restrictions(), "time")
        if found and found.cluster == other:
            return found
    return None


def _best(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions,
    minimize: Minimize,
) -> Choice | None:
    try:
        found = search(
            architecture, cluster, workload, restrictions, minimize=minimize, within=EQUAL
        )
    except BadInput:
        return None
    return found.chosen


def _sizes(cluster: Cluster, workload: Workload, beside: Cluster) -> Iterator[Cluster]:
    """Clusters nearest in size that the batch could fill."""
    rule, chips = cluster.chip.slices, cluster.slice.chips
    per_slice = workload.batch_sequences // cluster.slices
    if rule is not None:
        most = prod(rule.max_schedulable_shape)
        sizes = {prod(shape) for shape in legal_shapes(rule) if prod(shape) <= most}
    else:
        sizes = {1 << power for power in range((2 * chips).bit_length())}
    filled = [
        size
        for size in sizes - {chips, beside.slice.chips}
        if divides_evenly(per_slice, size) and chips / 4 <= size <= 4 * chips
    ]
    for size in nsmallest(NEAREST_SLICES, filled, key=lambda n: max(n / chips, chips / n)):
        shape = shapes_with(rule, size)[0] if rule else (size,)
        yield replace(cluster, slice=slice_of(cluster.chip, shape), notes=())


def divides_evenly(sequences: int, chips: int) -> bool:
    """Whether chips are FSDP ways that divide the sequences, times a power of two.

    >>> divides_evenly(1024, 8192), divides_evenly(1024, 8960)
    (True, False)
    """
    rest = chips // gcd(sequences, chips)
    return rest & (rest - 1) == 0
