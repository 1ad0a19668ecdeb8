"""What a planner must be told before spending chip-hours: one honest line each."""

from collections.abc import Iterator
from heapq import nsmallest
from math import gcd, prod

from muster.hardware import Cluster, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.constraints import kv_copies
from muster.planner.layout import Candidate, divisors
from muster.planner.memory import Fit, memory_of
from muster.planner.nearest import smallest_that_fits
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from muster.units import format_bytes, format_count

NEAREST_SLICES = 3
NEARLY = 0.05


def advice(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    fit: Fit,
    mfu: float,
) -> Iterator[str]:
    """Every warning about a chosen layout, the gravest first."""
    if not fit.memory.fits:
        yield does_not_fit(architecture, cluster, workload, fit)
    if fit.layout.chips_used < cluster.chips:
        yield idle_chips(cluster, workload, candidate)
    if not candidate.compute_bound:
        yield _communication_bound(candidate, mfu)
    elif candidate.communication > (1 - NEARLY) * candidate.math:
        yield "compute-bound only just: traffic takes over 95% of the math's time"
    copies = kv_copies(architecture, fit.layout.tensor)
    if copies > 1:
        yield (
            f"{fit.layout.tensor}-way tensor parallelism over {architecture.num_kv_heads} KV heads "
            f"keeps {copies} copies of each K and V; {architecture.num_kv_heads} ways need none"
        )
    padded = -architecture.vocab_size % fit.layout.tensor
    if padded:
        yield (
            f"a vocabulary of {format_count(architecture.vocab_size)} does not split "
            f"{fit.layout.tensor} ways: pad it by {padded} rows to "
            f"{format_count(architecture.vocab_size + padded)}, mask their logits, strip on export"
        )


def _communication_bound(candidate: Candidate, mfu: float) -> str:
    share = candidate.math / candidate.communication
    line = (
        f"bound by {candidate.slowest} traffic: it takes {1 / share:.2f} times the math's time, so "
        f"MFU stays under {share:.0%} even if all else is perfect"
    )
    return line if mfu <= share else f"{line}; the assumed {mfu:.0%} is out of reach"


def does_not_fit(architecture: Architecture, cluster: Cluster, workload: Workload, fit: Fit) -> str:
    """Say by how much memory is short, and the nearest changes that would fit."""
    memory = fit.memory
    head = (
        f"does not fit: {format_bytes(memory.total)} a chip of {format_bytes(memory.usable)} "
        f"usable ({fit.layout}, remat {fit.remat})"
    )
    changes = []
    if workload.remat and workload.remat != Remat.FULL:
        full = memory_of(architecture, cluster.chip, workload, fit.layout, Remat.FULL)
        if full.fits:
            changes.append(f"with remat full it needs {format_bytes(full.total)} and fits")
    larger = smallest_that_fits(architecture, cluster, workload)
    if larger:
        where, held = larger
        changes.append(
            f"it fits on {where.name} ({where.chips:,} chips): {format_bytes(held.memory.total)} a "
            f"chip with {held.layout}, remat {held.remat}"
        )
    return "; ".join([head, *changes]) if changes else f"{head}, nor on any larger slice"


def idle_chips(cluster: Cluster, workload: Workload, candidate: Candidate) -> str:
    """Say why some chips have no work, and which slices would have none idle."""
    per_slice = workload.batch_sequences // cluster.slices
    chips, used = cluster.slice.chips, candidate.layout.chips_per_slice
    common = gcd(per_slice, chips)
    each = " a slice" if cluster.slices > 1 else ""
    line = (
        f"{per_slice:,} sequences{each} do not divide over {chips:,} = {factorization(chips)} "
        f"chips (at most {common}-way x {chips // common}); the best layout uses {used:,} "
        f"and leaves {chips - used:,} idle"
    )
    nearest = _slices_without_idle_chips(cluster, workload)
    return f"{line}. No chip idles on {', '.join(nearest)}" if nearest else line


def _slices_without_idle_chips(cluster: Cluster, workload: Workload) -> list[str]:
    """The legal slices nearest in size that the batch fills, with their chips."""
    rule, chips = cluster.chip.slices, cluster.slice.chips
    if rule is None:
        return []
    per_slice = workload.batch_sequences // cluster.slices
    sizes = {prod(shape) for shape in legal_shapes(rule)}
    filled = [size for size in sizes if divides_evenly(per_slice, size)]
    nearest = nsmallest(NEAREST_SLICES, filled, key=lambda size: max(size / chips, chips / size))
    prefix = "" if cluster.slices == 1 else f"{cluster.slices}x"
    slices = [slice_of(cluster.chip, shapes_with(rule, size)[0]) for size in nearest]
    return [f"{prefix}{each.name} ({each.chips:,})" for each in slices]


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
