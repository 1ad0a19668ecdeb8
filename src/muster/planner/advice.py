"""What a planner must be told before spending chip-hours: one honest line each."""

from collections.abc import Iterator
from dataclasses import replace
from heapq import nsmallest
from math import gcd, prod

from muster.hardware import Cluster, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.constraints import divisors, kv_copies, shard_obstacle
from muster.planner.host import ASSUMED_BYTES, host_share
from muster.planner.nearest import nearest_changes
from muster.planner.search import Choice, Restrictions
from muster.roofline.workload import Workload
from muster.units import format_bytes, format_count

NEAREST_SLICES = 3
NEARLY_FULL = 0.92
NEARLY_FULL_HOST = 0.9


def advice(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    restrictions: Restrictions,
) -> Iterator[str]:
    """Every warning about a chosen layout, the gravest first."""
    layout = choice.layout
    if not choice.memory.fits:
        yield does_not_fit(architecture, cluster, workload, choice, restrictions)
    elif choice.memory.total > NEARLY_FULL * choice.memory.usable:
        yield (
            f"memory is {choice.memory.total / choice.memory.usable:.0%} full: buffers and "
            f"fragmentation that no formula sees may not fit"
        )
    if layout.chips_used < cluster.chips and not restrictions.max_chips:
        yield idle_chips(cluster, workload, choice)
    if choice.memory.host:
        yield from _host(cluster, choice)
    thin = shard_obstacle(architecture, cluster.chip, layout.weight_shards)
    if thin:
        yield (
            f"{thin.message}, as was asked for: it is padded, and what is gathered copied into "
            f"place, which the prediction leaves out; from {thin.limit} ways down there is no need"
        )
    copies = kv_copies(architecture, layout.tensor)
    if copies > 1:
        yield (
            f"{layout.tensor}-way tensor parallelism over {architecture.num_kv_heads} KV heads "
            f"keeps {copies} copies of each K and V; {architecture.num_kv_heads} ways need none"
        )
    padded = -architecture.vocab_size % layout.tensor
    if padded:
        yield (
            f"a vocabulary of {format_count(architecture.vocab_size)} does not split "
            f"{layout.tensor} ways: pad it by {padded} rows to "
            f"{format_count(architecture.vocab_size + padded)}, mask their logits, strip on export"
        )


def _host(cluster: Cluster, choice: Choice) -> Iterator[str]:
    """What is to know about activations that wait in the host's memory."""
    share, taken = host_share(cluster.chip), choice.memory.host
    each = f"{format_bytes(taken)} a chip of {format_bytes(share.bytes)}"
    if not share.known:
        yield (
            f"activations take {each} of its host's memory, which is not known for "
            f"{cluster.chip.name}: {format_bytes(ASSUMED_BYTES)} a host are assumed"
        )
    elif taken > NEARLY_FULL_HOST * share.bytes:
        yield (
            f"activations take {each} of its host's memory ({taken / share.bytes:.0%}), which "
            f"also has to hold the input pipeline and checkpoints being written"
        )


def does_not_fit(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    restrictions: Restrictions,
) -> str:
    """Say by how much memory is short, and the nearest changes that would fit."""
    memory = choice.memory
    head = (
        f"does not fit: {format_bytes(memory.total)} a chip of {format_bytes(memory.usable)} "
        f"usable ({choice.layout}, remat {choice.remat})"
    )
    state = memory.params + memory.gradients + memory.optimizer
    if state > memory.usable and choice.layout.chips_used == cluster.chips:
        head += (
            f"; parameters, gradients and optimizer alone are {format_bytes(state)} a chip: no "
            f"sharding over these {cluster.chips:,} chips can hold them"
        )
    changes = [
        f"{change}: {format_bytes(held.memory.total)} a chip with {held.layout}, remat {held.remat}"
        for change, held in nearest_changes(architecture, cluster, workload, restrictions)
    ]
    return f"{head}; it fits {', or '.join(changes)}" if changes else f"{head}, nor on any larger"


def idle_chips(cluster: Cluster, workload: Workload, choice: Choice) -> str:
    """Say why some chips have no work, and which slices to book instead."""
    per_slice = workload.batch_sequences // cluster.slices
    chips, used = cluster.slice.chips, choice.layout.chips_per_slice
    each = " of each slice" if cluster.slices > 1 else ""
    line = (
        f"{cluster.chips - choice.layout.chips_used:,} of {cluster.chips:,} chips would idle; book "
        f"{choice.cluster.name} ({choice.layout.chips_used:,} chips) for this plan"
    )
    if chips % used and not divides_evenly(per_slice, chips):
        common = gcd(per_slice, chips)
        line = (
            f"{per_slice:,} sequences do not divide over the {chips:,} = {factorization(chips)} "
            f"chips{each} (at most {common}-way x {chips // common}): {line}"
        )
    nearest = _filled_clusters(cluster, workload, beside=choice.cluster)
    return f"{line}. The batch also fills {', '.join(nearest)}" if nearest else line


def _filled_clusters(cluster: Cluster, workload: Workload, *, beside: Cluster) -> list[str]:
    """The legal clusters nearest in size that the batch fills, with their chips."""
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
    nearest = nsmallest(NEAREST_SLICES, filled, key=lambda size: max(size / chips, chips / size))
    clusters = [
        replace(
            cluster, slice=slice_of(cluster.chip, shapes_with(rule, size)[0] if rule else (size,))
        )
        for size in nearest
    ]
    return [f"{each.name} ({each.chips:,})" for each in clusters]


def divides_evenly(sequences: int, chips: int) -> bool:
    """Whether chips are FSDP ways that divide the sequences, times a power of two.

    >>> divides_evenly(1024, 8192), divides_evenly(1024, 8960)
    (True, False)
    """
    rest = chips // gcd(sequences, chips)
    return rest & (rest - 1) == 0


def factorization(number: int) -> str:
    """Print the prime factors.

    >>> factorization(8960)
    '2^8*5*7'
    """
    powers: list[str] = []
    for prime in divisors(number)[1:]:
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power:
            powers.append(f"{prime}^{power}" if power > 1 else str(prime))
    return "*".join(powers) or "1"
