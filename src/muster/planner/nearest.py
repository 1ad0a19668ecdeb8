"""The nearest "yes" to a model that does not fit: the smallest larger cluster that holds it."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from muster.hardware import Cluster, Torus, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.layout import candidates
from muster.planner.memory import Fit, least_recomputation
from muster.roofline.workload import Workload

MOST_TRIED = 40
MOST_GPUS = 1 << 20


def smallest_that_fits(
    architecture: Architecture, cluster: Cluster, workload: Workload
) -> tuple[Cluster, Fit] | None:
    """The smallest larger cluster of the same chips on which some layout fits, and that layout."""
    for larger in _larger(cluster):
        for candidate in candidates(architecture, larger, workload):
            fit = least_recomputation(architecture, larger.chip, workload, candidate.layout)
            if fit.memory.fits:
                return larger, fit
    return None


def _larger(cluster: Cluster) -> Iterator[Cluster]:
    """Larger slices in order of size: legal ones of a torus, doublings of a switched network."""
    if isinstance(cluster.chip.network, Torus):
        rule = cluster.chip.slices
        assert rule is not None
        sizes = sorted({prod(shape) for shape in legal_shapes(rule)})
        shapes = [shapes_with(rule, size)[0] for size in sizes if size > cluster.slice.chips]
    else:
        first, last = cluster.slice.chips, MOST_GPUS
        shapes = [
            (first << power,) for power in range(1, last.bit_length()) if first << power <= last
        ]
    for shape in shapes[:MOST_TRIED]:
        yield replace(cluster, slice=slice_of(cluster.chip, shape))
