"""What a planner must be told before spending chip-hours: one honest line each."""

from collections.abc import Iterator, Sequence
from math import gcd

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.booking import divides_evenly, filled_cluster, schedulable
from muster.planner.choice import ROOMY, Choice, Minimize, Restrictions
from muster.planner.constraints import divisors, kv_copies, shard_obstacle
from muster.planner.host import ASSUMED_BYTES, host_share
from muster.planner.nearest import Change
from muster.planner.sizes import chips_text
from muster.roofline.workload import Workload
from muster.units import format_bytes, format_count, format_seconds

NEAREST_CHANGES = 3
NEARLY_FULL_HOST = 0.8
MANY_IDLE = 0.05  # of the chips: worth asking for another size altogether


def advice(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    restrictions: Restrictions,
    *,
    minimize: Minimize = "time",
    nearest: Sequence[Change] = (),
    bookable: Choice | None = None,
) -> Iterator[str]:
    """Every warning about a chosen layout, the gravest first.

    Args:
        architecture: the model.
        cluster: the chips that were asked about.
        workload: batch, sequence and formats.
        choice: the layout.
        restrictions: what is held.
        minimize: what the search took the least of.
        nearest: changes under which it would fit, where it does not.
        bookable: the best on slices that can be scheduled, where those of the choice cannot.
    """
    layout, memory = choice.layout, choice.memory
    if not memory.fits:
        yield does_not_fit(cluster, choice, nearest)
    elif not choice.roomy:
        yield (
            f"memory is {memory.total / memory.usable:.0%} full, and predicted memory may be "
            f"{1 - ROOMY:.0%} too low: it may not fit"
        )
    if memory.fits:
        idle = layout.chips_used < cluster.chips and not restrictions.max_chips
        if idle and minimize == "time":
            yield idle_chips(architecture, cluster, workload, choice, bookable)
        elif bookable:
            yield f"{_cannot_be_scheduled(choice)}: {_booked(bookable)}"
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
    chip, taken = cluster.chip, choice.memory.host
    share, hosts = host_share(chip), chip.chips_per_host
    whole = f"{format_bytes(taken * hosts)} of a host of {chips_text(hosts)}"
    each = f"{format_bytes(taken)} a chip, {whole}"
    if not share.known:
        yield (
            f"activations take {each}, whose memory is not known for {chip.name}: "
            f"{format_bytes(ASSUMED_BYTES)} are assumed"
        )
    elif taken > NEARLY_FULL_HOST * share.bytes:
        yield (
            f"activations take {each} with {format_bytes(share.bytes * hosts)} "
            f"({taken / share.bytes:.0%}), which also has to hold the input pipeline and "
            f"checkpoints being written"
        )


def does_not_fit(cluster: Cluster, choice: Choice, nearest: Sequence[Change]) -> str:
    """Say by how much memory is short, and the nearest changes that would fit."""
    memory = choice.memory
    head = (
        f"does not fit: {format_bytes(memory.total)} a chip of {format_bytes(memory.usable)} "
        f"usable ({choice.layout}, remat {choice.remat})"
    )
    state, layout = memory.params + memory.gradients + memory.optimizer, choice.layout
    # What replicas hold alike could be split among them.
    least = state / (layout.data * layout.slice)
    if least > memory.usable and layout.chips_used == cluster.chips:
        these = "this chip" if cluster.chips == 1 else f"these {chips_text(cluster.chips)}"
        head += (
            f"; parameters, gradients and optimizer alone are {format_bytes(state)} a chip: no "
            f"sharding over {these} can hold them"
        )
    if not nearest:
        return f"{head}, nor on any other cluster that is known"
    return f"{head}; it fits {', or '.join(map(str, nearest[:NEAREST_CHANGES]))}"


def idle_chips(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    choice: Choice,
    bookable: Choice | None,
) -> str:
    """Say why some chips have no work, and which slices to book instead."""
    per_slice = workload.batch_sequences // cluster.slices
    chips, used = cluster.slice.chips, choice.layout.chips_per_slice
    each = " of each slice" if cluster.slices > 1 else ""
    line = f"{cluster.chips - choice.layout.chips_used:,} of {cluster.chips:,} chips would idle"
    if chips % used and not divides_evenly(per_slice, chips):
        line = (
            f"{per_slice:,} sequences do not divide over the {chips:,} = {factorization(chips)} "
            f"chips{each} (greatest common divisor {gcd(per_slice, chips)}): {line}"
        )
    if bookable:
        line += f"; {_cannot_be_scheduled(choice)}: {_booked(bookable)}"
    elif not schedulable(choice.cluster):
        line += f"; {_cannot_be_scheduled(choice)}, and slices that can do not take what is held"
    else:
        line += (
            f"; book {choice.cluster.name} ({chips_text(choice.layout.chips_used)}) for this plan"
        )
    many = choice.layout.chips_used < (1 - MANY_IDLE) * cluster.chips
    other = filled_cluster(architecture, cluster, workload, choice) if many else None
    if other is None:
        return line
    return (
        f"{line}. The batch also fills {other.cluster.name} "
        f"({chips_text(other.cluster.chips)}, a step takes {format_seconds(other.seconds)})"
    )


def _cannot_be_scheduled(choice: Choice) -> str:
    return f"{choice.cluster.name}, which this plan fills, cannot be scheduled as one slice"


def _booked(bookable: Choice) -> str:
    return (
        f"book {bookable.cluster.name} ({bookable.cluster.chips:,} chips), where the best takes "
        f"{format_seconds(bookable.seconds)} a step with {bookable.layout}"
    )


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
