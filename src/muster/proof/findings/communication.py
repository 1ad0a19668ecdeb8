"""Collectives that are waited for, that send too much, or that leave links idle.

An all-reduce sends 2 V (n - 1) / n where a gather or a scatter of the same array sends half. So
one that only makes an array whole, or of whose sum a chip keeps its own shard, costs twice what it
must.

A ring keeps two links of a chip busy, one to each neighbour. A chip has two along an axis that
wraps around and is all the group's, one along any other: those are what a group could use.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from muster.proof.costs import Cost
from muster.proof.findings.finding import Finding, Seen, over, sources
from muster.proof.hlo import Collective, Computation, Op, Program
from muster.sharding.rules import SHARD_AXES
from muster.units import format_bytes

MOST = 3  # lines of one kind of finding
LARGE = 1024**2  # bytes below which an array is no weight
_MAKES_WHOLE = frozenset({"dynamic-update-slice", "pad"})
_TAKES_A_SHARD = frozenset({"dynamic-slice", "slice"})


def synchronous(step: Seen) -> Iterator[Finding]:
    """Collectives beside which nothing else runs."""
    waits = _summed(step, lambda cost, each: 0.0 if each.asynchronous else cost.exposed)
    for what, seconds, count in waits:
        yield Finding(
            id="synchronous-collective",
            cost_seconds=seconds,
            what=f"{what}: {count:,} a step stop the core, nothing runs beside them",
            change="less of it (fewer ways on that axis), or a program that starts it earlier",
        )


def exposed(step: Seen) -> Iterator[Finding]:
    """Collectives that run beside work and outlast it."""
    waits = _summed(step, lambda cost, each: cost.exposed if each.asynchronous else 0.0)
    for what, seconds, _ in waits:
        yield Finding(
            id="exposed-collective",
            cost_seconds=seconds,
            what=f"{what}: the core waits for the rest of it",
            change="fewer ways on that axis, or a larger batch a chip to hide it behind",
        )


def gathered_by_reducing(step: Seen) -> Iterator[Finding]:
    """All-reduces of arrays that are zero but for one shard: a gather that sends twice as much."""
    yield from _twice(
        step,
        lambda *about: 0.5 if _is_a_gather(*about) else 0.0,
        name="gathered-by-reducing",
        what="gathers done as all-reduces of shards in zeros",
        change="shards of whole tiles: fewer ways that shard the weights, `data` above them",
    )


def reduced_whole(step: Seen) -> Iterator[Finding]:
    """All-reduces of which each chip keeps its own shard: a scatter that sends twice as much."""
    yield from _twice(
        step,
        _beyond_a_scatter,
        name="reduced-whole",
        what="sums all-reduced whole, though each chip keeps a shard",
        change="reduce-scatter: gradients constrained to the weights' own sharding, whole tiles",
    )


def one_ring(step: Seen) -> Iterator[Finding]:
    """Collectives that go round one ring though the torus offers more."""
    lost: dict[str, float] = {}
    for cost, each in step.collectives:
        offered = links_offered(step, each)
        if not each.strategy.rings or not offered or each.kind == "collective-permute":
            continue
        in_use = links_in_use(each, offered)
        if in_use < sum(offered) and cost.exposed:
            where = f"{each.kind} {over(each.axes)} ({each.strategy})"
            lost[where] = lost.get(where, 0.0) + cost.exposed * (1 - in_use / sum(offered))
    for where, seconds in _largest(lost):
        yield Finding(
            id="one-colour",
            cost_seconds=seconds,
            what=f"{where} leaves links of the torus idle",
            change="mesh axes of whole torus axes; shard the dim that is outermost in memory",
        )


def links_offered(step: Seen, each: Collective) -> tuple[int, ...]:
    """Links of one chip along every torus axis that a group lies on, the most first."""
    if not each.groups or not step.places or max(each.groups[0]) >= len(step.places):
        return ()
    places = [step.places[device][:3] for device in each.groups[0]]
    slice_ = step.cluster.slice
    along = zip(zip(*places, strict=True), slice_.shape, slice_.wrap, strict=False)
    counts = ((len(set(at)), size, wraps) for at, size, wraps in along)
    links = (2 if wraps and number == size else 1 for number, size, wraps in counts if number > 1)
    return tuple(sorted(links, reverse=True))


def links_in_use(each: Collective, offered: tuple[int, ...]) -> float:
    """Links of one chip that carry data at once."""
    if each.strategy.dims > 1:
        return sum(offered[: each.strategy.dims])
    return min(2 * max(1.0, each.strategy.at_once), sum(offered))


def shared_links(step: Seen) -> Iterator[Finding]:
    """Collectives whose groups stand between each other's chips and share their links."""
    lost: dict[str, float] = {}
    for cost, each in step.collectives:
        apart = step.links.apart(each)
        if apart > 1 and cost.exposed:
            where = f"{each.kind} {over(each.axes)}: chips {apart} apart"
            lost[where] = lost.get(where, 0.0) + cost.exposed * (1 - 1 / apart)
    for where, seconds in _largest(lost):
        yield Finding(
            id="shared-links",
            cost_seconds=seconds,
            what=f"{where}, so as many groups share each link",
            change="ways that fill whole torus axes, or another order of the mesh axes",
        )


def _summed(
    step: Seen, seconds_of: Callable[[Cost, Collective], float]
) -> Iterator[tuple[str, float, int]]:
    """Seconds and counts by kind and axes, the largest first."""
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    for cost, each in step.collectives:
        key = f"{each.kind} {over(each.axes)}"
        if spent := seconds_of(cost, each):
            seconds[key] = seconds.get(key, 0.0) + spent
            counts[key] = counts.get(key, 0) + cost.count
    for key, spent in _largest(seconds):
        yield key, spent, counts[key]


def _largest(table: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(table.items(), key=lambda each: -each[1])[:MOST]


def _twice(
    step: Seen,
    too_much: Callable[[Seen, Collective, Op, Computation], float],
    *,
    name: str,
    what: str,
    change: str,
) -> Iterator[Finding]:
    """All-reduces of which a share need not be sent, by the axes that they go over."""
    lost: dict[tuple[str, ...], tuple[float, float, int]] = {}
    for cost, each in step.collectives:
        if each.kind != "all-reduce" or each.array_bytes < LARGE or each.name not in step.standing:
            continue
        share = too_much(step, each, *step.standing[each.name])
        if not share:
            continue
        seconds, sent, count = lost.get(each.axes, (0.0, 0.0, 0))
        lost[each.axes] = (
            seconds + cost.exposed * share + _around_shards(step, *step.standing[each.name]),
            sent + each.array_bytes * cost.count,
            count + cost.count,
        )
    for axes, (seconds, arrays, count) in lost.items():
        yield Finding(
            id=name,
            cost_seconds=seconds,
            what=f"{what}: {count:,} a step {over(axes)}, {format_bytes(arrays)} of arrays",
            change=change,
        )


def _is_a_gather(step: Seen, each: Collective, op: Op, at: Computation) -> bool:
    del each
    started = op if op.phase != "done" else at.by_name.get(op.operands[0], op)
    return any(
        _ends_in(step.program, source, _MAKES_WHOLE)
        for operand in started.operands
        for source in sources(at, operand)
    )


def _around_shards(step: Seen, op: Op, at: Computation) -> float:
    """Seconds of a step that writing zeros, and shards into them, takes before an all-reduce."""
    names: set[str] = set()
    for operand in op.operands:
        for made in sources(at, operand):
            if _ends_in(step.program, made, _MAKES_WHOLE):
                into = [found for name in made.operands for found in sources(at, name)]
                names |= {made.name, *(each.name for each in into if each.opcode == "broadcast")}
    return sum(step.spent.get(name, 0.0) for name in names)


def _beyond_a_scatter(step: Seen, each: Collective, op: Op, at: Computation) -> float:
    """The share of an all-reduce's bytes that scattering, then summing shards, would not send.

    Which axes shard the weights, the plan says; without one, whether what reads the sum takes a
    shard of it.
    """
    if _is_a_gather(step, each, op, at):
        return 0.0
    axes = {axis.partition(":")[0] for axis in each.axes}
    if step.planned is None:
        readers = _readers(at, op)
        keeps = all(_ends_in(step.program, reader, _TAKES_A_SHARD) for reader in readers)
        return 0.5 if readers and keeps else 0.0
    if not axes <= {*SHARD_AXES, "data"} or axes <= _own_axes(step):
        return 0.0
    shards = math.prod(step.mesh.get(axis, 1) for axis in axes & set(SHARD_AXES))
    return share_saved(shards, max(each.ways // shards, 1))


def share_saved(shards: int, replicas: int) -> float:
    """Of an all-reduce between shards and replicas, what sending each shard's sum alone saves.

    The scatter sends (s - 1) / s of the array, the replicas then 2 (r - 1) / r of a shard.

    >>> share_saved(16, 1), share_saved(1, 4), share_saved(4, 4)
    (0.5, 0.0, 0.4)
    """
    ways = shards * replicas
    everything = 2 * (ways - 1) / ways
    least = (shards - 1) / shards + 2 * (replicas - 1) / replicas / shards
    return 1 - least / everything if ways > 1 else 0.0


def _own_axes(step: Seen) -> set[str]:
    """Axes that shard weights, but over which activations are summed too: sequence and expert."""
    return set(step.mesh) & {"sequence", "expert"} if "fsdp" in step.mesh else set()


def _readers(at: Computation, op: Op) -> list[Op]:
    """What reads an operation's result, through what only names it."""
    named, found = {op.name}, dict[str, Op]()
    waiting = [op.name]
    while waiting:
        name = waiting.pop()
        for other in at.ops:
            if name not in other.operands or other.name in named:
                continue
            if other.opcode in {"bitcast", "get-tuple-element"} or other.phase == "done":
                named.add(other.name)
                waiting.append(other.name)
            else:
                found[other.name] = other
    return list(found.values())


def _ends_in(program: Program, op: Op, opcodes: frozenset[str]) -> bool:
    """Whether an operation is of these, or a fusion whose result one of these makes."""
    if op.opcode in opcodes:
        return True
    if op.opcode != "fusion":
        return False
    return any(
        source.opcode in opcodes
        for called in program.called_by(op)
        for source in sources(called, called.root.name)
    )
