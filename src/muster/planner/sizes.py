"""Batches, sequences and clusters next in size: the steps of a sweep."""

import math
from dataclasses import replace

from muster.hardware import Cluster, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.roofline.workload import Workload

SHORTEST_SEQUENCE = 512
MOST_SWITCHED_CHIPS = 1 << 20


def scaled_batch(workload: Workload, factor: float, *, slices: int) -> Workload | None:
    """A batch of about `factor` as many sequences that splits over the slices; None below one."""
    sequences = int(workload.batch_sequences * factor) // slices * slices
    return replace(workload, batch_sequences=sequences) if sequences else None


def scaled_sequence(
    workload: Workload, factor: float, *, slices: int, longest: int | None
) -> Workload | None:
    """Sequences of `factor` the length in a batch of as many tokens; None where that is no batch.

    They end at the context length that the model declares, unless more was asked for.
    """
    length = int(workload.sequence_length * factor)
    most = max(longest or length, workload.sequence_length)
    least = min(SHORTEST_SEQUENCE, workload.sequence_length)
    sequences = workload.batch_tokens // length // slices * slices if length else 0
    if not sequences or not least <= length <= most:
        return None
    return replace(workload, sequence_length=length, batch_sequences=sequences)


def scaled_cluster(cluster: Cluster, factor: float) -> Cluster | None:
    """Slices of about `factor` as many chips: legal ones of a torus, else just so many chips.

    Whole slices are dropped first and added last: 8 slices become 4, 2, 1, then halves of one; one
    slice becomes larger as long as such slices are legal, then two, four.
    """
    chips = cluster.chips * factor
    if cluster.slices > 1 and (factor > 1 or chips >= cluster.slice.chips):
        slices = round(cluster.slices * factor)
        return replace(cluster, slices=slices)
    rule = cluster.chip.slices
    if rule is None:
        whole = round(chips)
        if not 1 <= whole <= MOST_SWITCHED_CHIPS:
            return None
        return Cluster(slice=slice_of(cluster.chip, (whole,)))
    shapes = legal_shapes(rule)
    most = math.prod(shapes[-1])
    if chips > most:
        return replace(cluster, slices=round(factor))
    sizes = {math.prod(shape) for shape in shapes}
    nearest = min(sizes, key=lambda size: (abs(math.log(size / chips)), size)) if chips >= 1 else 0
    if not nearest:
        return None
    return Cluster(slice=slice_of(cluster.chip, shapes_with(rule, nearest)[0]))
