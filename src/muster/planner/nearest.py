"""The nearest "yes" to a plan that does not fit: single changes, each with the best under it.

In this order, each only where it can help:

    chips      --max-chips let go, with the fewest chips that fit
    fix, remat what is held let go
    batch      more sequences where chips had none, fewer where a pipeline keeps many
    sequence   shorter ones, in batches of as many tokens
    moments    in bfloat16
    remat      activations on the host, which GPUs are planned with only where it is asked for
    cluster    the smallest larger one

Where no single change is enough two are named, and where no cluster of these chips is, other chips.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from muster.errors import BadInput
from muster.hardware import Chip, Cluster, Torus, all_chips, slice_of
from muster.hardware.shapes import legal_shapes, shapes_with
from muster.models.architecture import Architecture
from muster.planner.choice import EQUAL, Choice, Minimize, Restrictions
from muster.planner.search import search
from muster.planner.sizes import chips_text, scaled_batch, scaled_sequence
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from muster.units import format_bytes, format_seconds

MOST_GPUS = 1 << 20
MOST_DOUBLINGS = 6
THRIFTY_MOMENTS = "bf16"

type Kind = Literal["chips", "fix", "batch", "sequence", "moments", "remat", "cluster"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What would have to be otherwise, and the best layout then.

    Attributes:
        kinds: what is changed: one thing, or two where one is not enough.
        text: the change as options of the command line, to stand after "it fits".
        workload: batch, sequence and formats then.
        choice: the layout, its cluster, step and memory then.
    """

    kinds: tuple[Kind, ...]
    text: str
    workload: Workload
    choice: Choice

    def __str__(self) -> str:
        """The change with its numbers."""
        choice = self.choice
        return (
            f"{self.text}: {format_bytes(choice.memory.total)} a chip, step "
            f"{format_seconds(choice.seconds)} with {choice.layout}, remat {choice.remat}"
        )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question that a change turns into another one, and what was changed so far."""

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    restrictions: Restrictions
    minimize: Minimize = "time"
    kinds: tuple[Kind, ...] = ()
    texts: tuple[str, ...] = ()

    def but(self, kind: Kind, text: str, **changed: object) -> "_Asked":
        """The same with something changed."""
        kinds, texts = (*self.kinds, kind), (*self.texts, text)
        return replace(self, kinds=kinds, texts=texts, **changed)  # type: ignore[arg-type]

    def answer(self) -> Change | None:
        """The best layout, if any fits."""
        try:
            found = search(
                self.architecture,
                self.cluster,
                self.workload,
                self.restrictions,
                minimize=self.minimize,
                within=EQUAL,
            )
        except BadInput:
            return None
        if found.chosen is None:
            return None
        text = ", ".join(self.texts)
        if self.minimize == "chips":
            text = text.format(chips=found.chosen.layout.chips_used)
        return Change(kinds=self.kinds, text=text, workload=self.workload, choice=found.chosen)


def nearest_changes(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    restrictions: Restrictions,
    closest: Choice,
) -> tuple[Change, ...]:
    """The nearest changes under which some layout fits, the nearest first; never none.

    Args:
        architecture: the model.
        cluster: where it does not fit.
        workload: batch, sequence and formats with which it does not fit.
        restrictions: what is held.
        closest: what is short of least memory.
    """
    asked = _Asked(
        architecture=architecture, cluster=cluster, workload=workload, restrictions=restrictions
    )
    for found in (
        _first_of_each(_single(asked, closest)),
        _first_of_each(_double(asked)),
        _first_of_each(_elsewhere(asked)),
    ):
        if found:
            return found
    return ()


def _first_of_each(groups: Iterable[Iterable[_Asked]]) -> tuple[Change, ...]:
    """Of each kind of change the first that is enough."""
    found = (next(filter(None, (each.answer() for each in group)), None) for group in groups)
    return tuple(filter(None, found))


def _single(asked: _Asked, closest: Choice) -> Iterator[Iterable[_Asked]]:
    memory = closest.memory
    state = memory.params + memory.gradients + memory.optimizer
    full = state > memory.usable and closest.layout.chips_used == asked.cluster.chips
    yield _more_of_the_cluster(asked)
    yield _let_go(asked)
    yield () if full else _batches(asked, closest)
    yield () if full else _sequences(asked)
    yield _moments(asked)
    yield _on_the_host(asked)
    yield _larger(asked)


def _double(asked: _Asked) -> Iterator[Iterable[_Asked]]:
    """Two changes at once: what is cheap to change first."""
    yield (both for thrifty in _moments(asked) for both in _sequences(thrifty))
    yield (both for thrifty in _moments(asked) for both in _larger(thrifty))
    yield (both for free in _all_let_go(asked) for both in _sequences(free))
    yield (both for free in _all_let_go(asked) for both in _larger(free))
    yield (both for shorter in _sequences(asked) for both in _larger(shorter))


def _elsewhere(asked: _Asked) -> Iterator[Iterable[_Asked]]:
    """On other chips, of most memory first, with nothing held."""
    free = replace(asked, restrictions=Restrictions(trainable=asked.restrictions.trainable))
    chips = sorted(all_chips(), key=lambda chip: -chip.hbm_bytes)
    yield (
        on
        for chip in chips
        if chip.kind == asked.cluster.chip.kind
        and chip.id != asked.cluster.chip.id
        and not chip.incomplete
        for on in _smallest(free, _clusters(chip))
    )


def _more_of_the_cluster(asked: _Asked) -> Iterator[_Asked]:
    most = asked.restrictions.max_chips
    if most and most < asked.cluster.chips:
        whole = replace(asked.restrictions, max_chips=None)
        text = "with --max-chips {chips}"
        yield asked.but("chips", text, restrictions=whole, minimize="chips")


def _let_go(asked: _Asked) -> Iterator[_Asked]:
    """What is held let go, one thing of it where that is enough."""
    held = asked.restrictions
    for axis, ways in held.fixed.items():
        rest = {k: v for k, v in held.fixed.items() if k != axis}
        free = replace(held, fixed=rest)
        yield asked.but("fix", f"without --fix {axis}={ways}", restrictions=free)
    if held.remat:
        free = replace(held, remat=None)
        yield asked.but("fix", f"without --remat {held.remat}", restrictions=free)
    yield from _all_let_go(asked)


def _all_let_go(asked: _Asked) -> Iterator[_Asked]:
    held = asked.restrictions
    if held.fixed or held.remat:
        free = replace(held, fixed={}, remat=None)
        yield asked.but("fix", "without what --fix and --remat hold", restrictions=free)


def _batches(asked: _Asked, closest: Choice) -> Iterator[_Asked]:
    """Larger batches where chips have no sequence, smaller ones where stages keep many."""
    if closest.layout.chips_used < asked.cluster.chips:
        factors = [2.0**power for power in range(1, MOST_DOUBLINGS + 1)]
    elif closest.layout.stage > 1:
        factors = [0.5**power for power in range(1, MOST_DOUBLINGS + 1)]
    else:
        return  # a chip takes a sequence at a time, however many there are
    for factor in factors:
        workload = scaled_batch(asked.workload, factor, asked.cluster)
        if workload:
            text = f"with --batch {workload.batch_sequences}seq"
            yield asked.but("batch", text, workload=workload)


def _sequences(asked: _Asked) -> Iterator[_Asked]:
    for power in range(1, MOST_DOUBLINGS + 1):
        shorter = scaled_sequence(asked.workload, 0.5**power, asked.cluster, longest=None)
        if shorter:
            text = f"with --seq {shorter.sequence_length} --batch {shorter.batch_sequences}seq"
            yield asked.but("sequence", text, workload=shorter)


def _moments(asked: _Asked) -> Iterator[_Asked]:
    if asked.workload.optimizer_dtype == "f32":
        thrifty = replace(asked.workload, optimizer_dtype=THRIFTY_MOMENTS)
        yield asked.but("moments", f"with --optimizer-dtype {THRIFTY_MOMENTS}", workload=thrifty)


def _on_the_host(asked: _Asked) -> Iterator[_Asked]:
    if asked.restrictions.remat is None and asked.cluster.chip.kind == "gpu":
        held = replace(asked.restrictions, remat=Remat.OFFLOAD)
        yield asked.but("remat", f"with --remat {Remat.OFFLOAD}", restrictions=held)


def _larger(asked: _Asked) -> Iterator[_Asked]:
    """The smallest larger cluster of the same chips, whatever --max-chips allows of this one."""
    free = replace(asked, restrictions=replace(asked.restrictions, max_chips=None))
    yield from _smallest(free, _larger_clusters(asked.cluster))


def _smallest(asked: _Asked, clusters: Iterable[Cluster]) -> Iterator[_Asked]:
    """The smallest cluster on which some layout fits.

    Memory falls as chips grow: steps that double, since small clusters are searched sooner than
    large ones, then halves.
    """
    sizes = [
        asked.but("cluster", f"on {where.name} ({chips_text(where.chips)})", cluster=where)
        for where in clusters
    ]
    low, high, step = 0, len(sizes), 1
    while low < high:
        middle = min(low + step - 1, high - 1) if step else (low + high) // 2
        if sizes[middle].answer():
            high, step = middle, 0
        else:
            low, step = middle + 1, 2 * step
    if high < len(sizes):
        yield sizes[high]


def _larger_clusters(cluster: Cluster) -> Iterator[Cluster]:
    """Larger slices in order of size: legal ones of a torus, doublings of a switched network."""
    rule, chips = cluster.chip.slices, cluster.slice.chips
    if isinstance(cluster.chip.network, Torus) and rule is not None:
        sizes = sorted({math.prod(shape) for shape in legal_shapes(rule)})
        shapes = [shapes_with(rule, size)[0] for size in sizes if size > chips]
    else:
        shapes = [(size,) for size in _doublings(chips)]
    for shape in shapes:
        yield replace(cluster, slice=slice_of(cluster.chip, shape), notes=())


def _doublings(chips: int) -> Iterator[int]:
    while (chips := 2 * chips) <= MOST_GPUS:
        yield chips


def _clusters(chip: Chip) -> Iterator[Cluster]:
    """Every size of one slice of a chip."""
    one = Cluster(slice=slice_of(chip, legal_shapes(chip.slices)[0] if chip.slices else (1,)))
    yield one
    yield from _larger_clusters(one)
