"""Where the layouts that published runs chose stand among those that the search finds.

Model, cluster, batch, formats, software and attention kernel are the run's own for both, so that
only the layout, its microbatches and its recomputation differ. Compared are steps, all of them
predicted:

    published   the run's layout as it ran
    tuned       the run's mesh with the microbatches, pieces of stages and remat of the search
    familiar    the best mesh with those axes alone that any run of its source uses: what its
                software is known to do
    best        the best mesh of the search
    gain        published over best, less one

The rank is that of `tuned` among the meshes of the search, which lists those within 25 % of the
best; beyond them a rank is only known to be larger than their number. A published layout can be
faster than the best: where its remat is none of the search's, or where it ran although the memory
model says that it does not fit.

Many sources measured dozens of layouts of one model to fill a table. What their authors would
choose is the fastest of each such family (same source, model, chips and batch): the sample takes
those alone.
"""

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from muster.errors import MusterError
from muster.planner.search import AXES, Found, Restrictions, search
from muster.sharding.mesh import Layout
from muster.validation.groups import Group, group_setups
from muster.validation.memory import predict_memory
from muster.validation.predict import cluster_of, kernel_of, software_of, step_time
from muster.validation.rank_reasons import INTERLEAVED, MODEL_AXES, rank_reasons
from muster.validation.ranks import LARGE_GAP, Rank, Unranked
from muster.validation.runs import Run
from muster.validation.score import HALF_PRECISION
from muster.validation.setup import Setup, setup_of

MOST_REASONS = 2

type Progress = Callable[[int, int, Group | None], None]


def families(groups: Iterable[Group]) -> dict[tuple[object, ...], list[Group]]:
    """Groups that differ in layout, remat and formats alone, the fastest first."""
    found: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        found.setdefault(family_of(group), []).append(group)
    return {key: sorted(part, key=lambda g: g.measured_seconds) for key, part in found.items()}


def family_of(group: Group) -> tuple[object, ...]:
    """Source, model, cluster and batch."""
    setup = group.setups[0]
    workload = setup.workload
    sizes = (setup.architecture.num_layers, setup.architecture.d_model)
    batch = (workload.sequence_length, workload.batch_sequences)
    return (setup.run.source_group, setup.run.model, sizes, setup.cluster.name, batch)


def half_precision_groups(runs: Iterable[Run]) -> tuple[Group, ...]:
    """The complete bf16 and fp16 set-ups."""
    setups = (setup_of(run) for run in runs)
    return group_setups(
        each
        for each in setups
        if isinstance(each, Setup) and each.formats.compute in HALF_PRECISION
    )


def sample(groups: Iterable[Group], size: int | None) -> tuple[Group, ...]:
    """The fastest of each family, the first `size` by the SHA-256 of their ids; None for all."""
    if size is None:
        return tuple(groups)
    fastest = [part[0] for part in families(groups).values()]
    return tuple(sorted(fastest, key=_digest)[:size])


def rank_layouts(
    groups: Iterable[Group],
    every: Iterable[Group],
    progress: Progress | None = None,
) -> tuple[tuple[Rank, ...], tuple[Unranked, ...]]:
    """Search the layouts of some set-ups.

    Args:
        groups: those to search.
        every: all that were measured, to tell sweeps and what a source's runs use.
        progress: called before each with how many are done, how many there are, and the next;
            with None when all are done.
    """
    groups, every = list(groups), list(every)
    known = families(every)
    used = _axes_used(every)
    ranks: list[Rank] = []
    unranked: list[Unranked] = []
    for done, group in enumerate(groups):
        if progress:
            progress(done, len(groups), group)
        fastest = known.get(family_of(group), [group])[0]
        slower = group.measured_seconds / fastest.measured_seconds - 1
        try:
            setup = group.setups[0]
            axes = used.get((setup.run.source_group, setup.software), set(AXES))
            rank = rank_layout(group, axes, slower)
        except (MusterError, ArithmeticError, ValueError, LookupError) as error:
            unranked.append(Unranked(group=group, reason=str(error)))
            continue
        if rank.odd:
            size = len(known.get(family_of(group), [group]))
            reasons = rank_reasons(rank, axes, size)
            rank = replace(rank, reason="; ".join(itertools.islice(reasons, MOST_REASONS)))
        ranks.append(rank)
    if progress:
        progress(len(groups), len(groups), None)
    return tuple(ranks), tuple(unranked)


def rank_layout(group: Group, axes: Collection[str], measured_best: float = 0.0) -> Rank:
    """Search the layouts of one set-up and place its own among them.

    Args:
        group: the set-up.
        axes: those that its source's runs use.
        measured_best: how much faster the fastest measured layout of the family is.
    """
    setup = group.setups[0]
    found = _search(setup, None)
    mesh = _mesh(setup.layout)
    best = found.ranked[0] if found.ranked else None
    tuned = next((each for each in found.ranked if _mesh(each.layout) == mesh), None)
    if tuned is None:
        fixed = {axis: getattr(setup.layout, axis) for axis in AXES if axis != "microbatches"}
        alone = _search(setup, Restrictions(fixed=fixed))
        tuned = next((each for each in alone.ranked if _mesh(each.layout) == mesh), None)
    familiar = best
    others = [axis for axis in MODEL_AXES if axis not in axes]
    if best and any(getattr(best.layout, axis) > 1 for axis in others):
        alone = _search(setup, Restrictions(fixed=dict.fromkeys(others, 1)))
        familiar = alone.ranked[0] if alone.ranked else None
    published = step_time(setup)
    near = [
        each for each in found.ranked if best and each.seconds <= (1 + LARGE_GAP) * best.seconds
    ]
    inside = bool(best and tuned and tuned.seconds <= (1 + LARGE_GAP) * best.seconds)
    faster = sum(tuned is not None and each.seconds < tuned.seconds for each in near)
    return Rank(
        group=group,
        published=published,
        memory=predict_memory(setup),
        tuned=tuned,
        familiar=familiar,
        best=best,
        rank=faster + 1 if inside else None,
        listed=len(near),
        measured_best=measured_best,
    )


def _search(setup: Setup, restrictions: Restrictions | None) -> Found:
    return search(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        restrictions,
        software=software_of(setup),
        attention=kernel_of(setup),
        within=1 + LARGE_GAP,
    )


def _mesh(layout: Layout) -> tuple[int, ...]:
    return tuple(getattr(layout, axis) for axis in ("slice", *AXES) if axis != "microbatches")


def _digest(group: Group) -> str:
    return hashlib.sha256(group.id.encode()).hexdigest()


def _axes_used(groups: Iterable[Group]) -> dict[tuple[str, str], set[str]]:
    """The axes that any run of a source and software uses."""
    used: dict[tuple[str, str], set[str]] = {}
    for group in groups:
        setup = group.setups[0]
        axes = used.setdefault((setup.run.source_group, setup.software), set())
        axes |= {axis for axis in AXES[:-1] if getattr(setup.layout, axis) > 1}
        if setup.layout.virtual_stages > 1:
            axes.add(INTERLEAVED)
    return used
