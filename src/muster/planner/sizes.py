"""Batches, sequences and clusters next in size: the steps of a sweep."""

import math
from dataclasses import replace

from muster.hardware import Chip, Cluster, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.roofline.workload import Workload

SHORTEST_SEQUENCE = 512
MOST_SWITCHED_CHIPS = 1 << 20
# Where a batch cannot be just so many times as large: how far off it may be.
NEARBY = 1 / 15


def chips_text(chips: int) -> str:
    """So many chips, in words.

    >>> chips_text(1), chips_text(8192)
    ('1 chip', '8,192 chips')
    """
    return "1 chip" if chips == 1 else f"{chips:,} chips"


def scaled_batch(workload: Workload, factor: float, cluster: Cluster) -> Workload | None:
    """A batch of about `factor` as many sequences that splits over the slices; None below one."""
    sequences = _sequences(workload.batch_sequences * factor, cluster)
    return replace(workload, batch_sequences=sequences) if sequences else None


def scaled_sequence(
    workload: Workload, factor: float, cluster: Cluster, *, longest: int | None
) -> Workload | None:
    """Sequences of `factor` the length in a batch of as many tokens; None where that is no batch.

    They end at the context length that the model declares, unless more was asked for.
    """
    length = int(workload.sequence_length * factor)
    most = max(longest or length, workload.sequence_length)
    least = min(SHORTEST_SEQUENCE, workload.sequence_length)
    if not least <= length <= most:
        return None
    sequences = _sequences(workload.batch_sequences / factor, cluster)
    if not sequences:
        return None
    return replace(workload, sequence_length=length, batch_sequences=sequences)


def _sequences(wanted: float, cluster: Cluster) -> int:
    """Sequences that split over the slices: just so many, else nearby ones that divide well.

    That is over the most chips; of equals the nearest. Zero where there are fewer than slices.

    >>> from muster.hardware import parse_cluster
    >>> [_sequences(each, parse_cluster("h100:64")) for each in (500, 62.5, 7.5, 0.5)]
    [500, 64, 8, 0]
    """
    slices = cluster.slices
    per_slice = wanted / slices
    if per_slice == int(per_slice):
        return int(wanted)
    least = max(1, math.ceil(per_slice * (1 - NEARBY)))
    nearby = range(least, math.floor(per_slice * (1 + NEARBY)) + 1) or [int(per_slice)]
    chips = cluster.slice.chips
    return slices * max(nearby, key=lambda n: (math.gcd(n, chips), -abs(n - per_slice)))


def scaled_cluster(cluster: Cluster, factor: float) -> Cluster | None:
    """Slices of about `factor` as many chips: legal ones of a torus, else whole hosts.

    Whole slices are dropped first and added last: 8 slices become 4, 2, 1, then halves of one; one
    slice becomes larger as long as such slices are legal, then two, four.
    """
    chips = cluster.chips * factor
    if cluster.slices > 1 and (factor > 1 or chips >= cluster.slice.chips):
        slices = round(cluster.slices * factor)
        return replace(cluster, slices=slices)
    rule = cluster.chip.slices
    if rule is None:
        whole = _whole_hosts(cluster.chip, chips)
        if not 1 <= whole <= MOST_SWITCHED_CHIPS:
            return None
        return Cluster(slice=slice_of(cluster.chip, (whole,)))
    shapes = legal_shapes(rule)
    most = math.prod(shapes[-1])
    if chips > most:
        return replace(cluster, slices=round(factor))
    sizes = {math.prod(shape) for shape in shapes}

    def distance(size: int) -> tuple[float, int]:
        """How far a size is off; of two the one farther from the given one."""
        return abs(math.log(size / chips)), -size if factor > 1 else size

    nearest = min(sizes, key=distance) if chips >= 1 else 0
    if not nearest:
        return None
    return Cluster(slice=slice_of(cluster.chip, shapes_with(rule, nearest)[0]))


def _whole_hosts(chip: Chip, chips: float) -> int:
    """About so many chips that can be asked for: whole hosts of GPUs, or an even part of one."""
    host = chip.chips_per_host
    if chip.kind != "gpu":
        return round(chips)
    if chips >= host:
        return host * round(chips / host)
    parts = (each for each in range(1, host + 1) if host % each == 0)
    return min(parts, key=lambda part: abs(part - chips)) if chips >= 1 else 0
