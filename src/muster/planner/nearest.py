"""The nearest "yes" to a plan that does not fit: fewer things held fixed, or more chips."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from muster.hardware import Cluster, Torus, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.search import Choice, Restrictions, search
from muster.roofline.workload import Workload

MOST_GPUS = 1 << 20


def nearest_changes(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions,
) -> Iterator[tuple[str, Choice]]:
    """Single changes under which some layout fits, with the best such layout."""
    if restrictions.remat or restrictions.fixed:
        freed = search(architecture, cluster, workload, Restrictions())
        if freed.ranked:
            yield "without what --fix and --remat hold", freed.ranked[0]
    larger = smallest_that_fits(architecture, cluster, workload, restrictions)
    if larger:
        where, choice = larger
        yield f"on {where.name} ({where.chips:,} chips)", choice


def smallest_that_fits(
    architecture: Architecture, cluster: Cluster, workload: Workload, restrictions: Restrictions
) -> tuple[Cluster, Choice] | None:
    """The smallest larger cluster of the same chips on which some layout fits, and the best there.

    Memory falls as chips grow, so sizes are halved into rather than tried one by one.
    """
    sizes = list(_larger(cluster))
    low, high = 0, len(sizes)
    found: tuple[Cluster, Choice] | None = None
    while low < high:
        middle = (low + high) // 2
        ranked = search(architecture, sizes[middle], workload, restrictions).ranked
        if ranked:
            found, high = (sizes[middle], ranked[0]), middle
        else:
            low = middle + 1
    return found


def _larger(cluster: Cluster) -> Iterator[Cluster]:
    """Larger slices in order of size: legal ones of a torus, doublings of a switched network."""
    rule, chips = cluster.chip.slices, cluster.slice.chips
    if isinstance(cluster.chip.network, Torus) and rule is not None:
        sizes = sorted({prod(shape) for shape in legal_shapes(rule)})
        shapes = [shapes_with(rule, size)[0] for size in sizes if size > chips]
    else:
        shapes = [(size,) for size in _doublings(chips)]
    for shape in shapes:
        yield replace(cluster, slice=slice_of(cluster.chip, shape))


def _doublings(chips: int) -> Iterator[int]:
    while (chips := 2 * chips) <= MOST_GPUS:
        yield chips
