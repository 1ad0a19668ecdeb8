"""Sweeps: the best layout again at other batches, chip counts or sequence lengths.

    batch   the given batch and its halvings and doublings
    chips   the slice that the plan fills, and the legal ones nearest to its halvings and doublings;
            past the largest slice, more slices
    seq     sequences of half, twice ... the length, in batches of as many tokens

Every point is a search of its own, the same as that of a plan made there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal, get_args

from muster.errors import BadInput, UnknownName
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.binding import Bound, bound_of
from muster.planner.choice import EQUAL
from muster.planner.plan import SCHEMA, Plan
from muster.planner.search import Choice, Found, Minimize, Restrictions, search
from muster.planner.sizes import scaled_batch, scaled_cluster, scaled_sequence
from muster.roofline.flops import six_n, training_flops
from muster.roofline.mfu import active_params
from muster.roofline.training_time import step_seconds, time_of_steps
from muster.roofline.workload import Workload
from muster.units import format_bytes

type What = Literal["batch", "chips", "seq"]

WHAT: tuple[What, ...] = get_args(What.__value__)
# Halvings and doublings on each side of what was given.
STEPS = {"batch": (4, 4), "chips": (4, 3), "seq": (4, 4)}
# Slices too small for the model are doubled until so many fit, at most so often.
POINTS_PAST_FIT = 3
MOST_DOUBLINGS = 14


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """The best at one batch, chip count or sequence length.

    Attributes:
        value: what is swept: tokens of the batch, chips that the layout fills, or tokens of a
            sequence.
        cluster: the slices to book: those that the layout fills.
        choice: the best layout; None where none fits.
        at_peak_seconds: the step's 6N FLOPs at the peak of the chips used.
        flops_ratio: exact FLOPs with causal attention over 6N ones.
        bound: the resource that is busy longest.
        days: of the whole run; None where no corpus was given.
        why_not: why nothing fits, or None.
        given: whether this is what the user asked about.
    """

    value: int
    cluster: Cluster
    workload: Workload
    choice: Choice | None
    at_peak_seconds: float
    flops_ratio: float
    bound: Bound | None
    days: float | None
    chip_hours: float | None
    cost_usd: float | None
    why_not: str | None
    given: bool = False

    @property
    def seconds(self) -> float | None:
        """Predicted time of a step."""
        return self.choice.seconds if self.choice else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization, 6N convention, of the chips used."""
        return self.at_peak_seconds / self.choice.seconds if self.choice else None

    @property
    def mfu_causal(self) -> float | None:
        """The same in the convention of exact matmuls with causal attention."""
        return self.mfu * self.flops_ratio if self.mfu is not None else None

    @property
    def tokens_per_second_per_chip(self) -> float | None:
        """Throughput of one chip."""
        if self.choice is None:
            return None
        return self.workload.batch_tokens / self.choice.seconds / self.cluster.chips

    def to_json(self) -> dict[str, object]:
        """The point as `--sweep --json` prints it; what does not fit has nulls."""
        choice = self.choice
        return {
            "value": self.value,
            "given": self.given,
            "cluster": self.cluster.name,
            "chips": self.cluster.chips,
            "batch_tokens": self.workload.batch_tokens,
            "sequence_length": self.workload.sequence_length,
            "fits": choice is not None,
            "why_not": self.why_not,
            "step_seconds": self.seconds,
            "mfu": self.mfu,
            "mfu_causal": self.mfu_causal,
            "tokens_per_second_per_chip": self.tokens_per_second_per_chip,
            "bound": self.bound,
            "train_days": self.days,
            "chip_hours": self.chip_hours,
            "cost_usd": self.cost_usd,
            "layout": {**asdict(choice.layout), "chips_used": choice.layout.chips_used}
            if choice
            else None,
            "remat": choice.remat.value if choice else None,
            "memory_per_chip": choice.memory.total if choice else None,
        }


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A curve: points in ascending order of what is swept."""

    what: What
    architecture: Architecture
    points: tuple[SweepPoint, ...]

    @property
    def given(self) -> SweepPoint:
        """The point that the user asked about."""
        return next(point for point in self.points if point.given)

    def to_json(self) -> dict[str, object]:
        """The sweep as `--sweep --json` prints it."""
        return {
            "muster": SCHEMA,
            "model": self.architecture.name,
            "sweep": self.what,
            "mfu_convention": "6N, predicted",
            "search": "full",
            "points": [point.to_json() for point in self.points],
        }


def parse_what(text: str) -> What:
    """Read what to sweep.

    >>> parse_what("chips")
    'chips'
    """
    for known in WHAT:
        if text == known:
            return known
    raise UnknownName("sweep", text, WHAT)


def sweep_of(plan: Plan, what: What, restrictions: Restrictions, *, minimize: Minimize) -> Sweep:
    """The sweep around a plan, whose own search is not repeated."""
    found = Found(
        ranked=(plan.choice,) if plan.fits else (),
        chosen=plan.choice if plan.fits else None,
        examined=plan.examined,
        closest=None if plan.fits else plan.choice,
    )
    workload = replace(plan.workload, remat=None)
    return sweep(
        plan.architecture,
        plan.cluster,
        workload,
        what,
        restrictions,
        minimize=minimize,
        found=found,
    )


def sweep(
    architecture: Architecture,
    cluster: Cluster,
    workload: Workload,
    what: What,
    restrictions: Restrictions | None = None,
    *,
    minimize: Minimize = "time",
    found: Found | None = None,
) -> Sweep:
    """Search again at smaller and larger batches, slices or sequences.

    Args:
        architecture: the model.
        cluster: the chips in the middle of the sweep.
        workload: batch, sequence, corpus and formats in the middle of the sweep.
        what: which of them to vary.
        restrictions: what is held fixed at every point.
        minimize: what every search takes the least of.
        found: what the search in the middle found, where that is known.

    Raises:
        BadInput: the batch in the middle does not split over the slices.
    """
    held = restrictions or Restrictions()
    middle = found or search(architecture, cluster, workload, held, minimize=minimize)
    return _Sweeper(architecture, workload, what, held, minimize, middle).run(cluster)


class _Sweeper:
    """One sweep: what its points share."""

    def __init__(
        self,
        architecture: Architecture,
        workload: Workload,
        what: What,
        restrictions: Restrictions,
        minimize: Minimize,
        middle: Found,
    ) -> None:
        self.architecture = architecture
        self.workload = workload
        self.what: What = what
        self.restrictions = restrictions
        self.minimize: Minimize = minimize
        self.middle = middle
        self.per_token = six_n(active_params(architecture)).total

    def run(self, cluster: Cluster) -> Sweep:
        """The middle, then outward from it on either side."""
        given = self._point(cluster, self.workload, self.middle, given=True)
        below, above = STEPS[self.what]
        if given.choice is None and self.what == "chips":
            below, above = 1, MOST_DOUBLINGS
        down = self._walk(cluster, given, [0.5**power for power in range(1, below + 1)])
        up = self._walk(cluster, given, [2.0**power for power in range(1, above + 1)])
        distinct = {point.value: point for point in (*down, *up, given)}
        points = tuple(sorted(distinct.values(), key=lambda point: point.value))
        return Sweep(what=self.what, architecture=self.architecture, points=points)

    def _walk(
        self, cluster: Cluster, given: SweepPoint, factors: Iterable[float]
    ) -> Iterator[SweepPoint]:
        """Points ever farther from the middle; slices too small grow until three fit."""
        fit = 0
        for factor in factors:
            base = given.cluster if self.what == "chips" else cluster
            place = self._place(base, factor)
            if place is None or (given.choice is None and fit == POINTS_PAST_FIT):
                return
            point = self._searched(*place)
            fit += point.choice is not None
            yield point

    def _place(self, cluster: Cluster, factor: float) -> tuple[Cluster, Workload] | None:
        workload: Workload | None = self.workload
        place: Cluster | None = cluster
        match self.what:
            case "batch":
                workload = scaled_batch(self.workload, factor, cluster)
            case "seq":
                longest = self.architecture.context_length
                workload = scaled_sequence(self.workload, factor, cluster, longest=longest)
            case "chips":
                place = scaled_cluster(cluster, factor)
        return (place, workload) if place and workload else None

    def _searched(self, cluster: Cluster, workload: Workload) -> SweepPoint:
        """The best there; over chips on the slices that it fills, which are then searched too."""
        point = self._point(cluster, workload, self._search(cluster, workload))
        if self.what == "chips":
            while point.choice and point.cluster != cluster:
                cluster = point.cluster
                point = self._point(cluster, workload, self._search(cluster, workload))
        return point

    def _search(self, cluster: Cluster, workload: Workload) -> Found:
        try:
            return search(
                self.architecture,
                cluster,
                workload,
                self.restrictions,
                minimize=self.minimize,
                within=EQUAL,
            )
        except BadInput:
            return Found(ranked=(), chosen=None, examined=0, closest=None)

    def _point(
        self, cluster: Cluster, workload: Workload, found: Found, *, given: bool = False
    ) -> SweepPoint:
        choice = found.chosen
        filled = choice.cluster if choice else cluster
        chips, price = filled.chips, cluster.chip.price_usd_per_hour
        at_peak = step_seconds(
            flops_per_token=self.per_token,
            batch_tokens=workload.batch_tokens,
            chips=chips,
            peak_flops=cluster.chip.bf16_flops,
            mfu=1.0,
        )
        count = workload.steps
        run = time_of_steps(count, choice.seconds, chips=chips) if choice and count else None
        values = {
            "batch": workload.batch_tokens,
            "chips": chips,
            "seq": workload.sequence_length,
        }
        return SweepPoint(
            value=values[self.what],
            cluster=filled,
            workload=workload,
            choice=choice,
            at_peak_seconds=at_peak,
            flops_ratio=_exact_flops(self.architecture, workload.sequence_length) / self.per_token,
            bound=bound_of(filled, choice) if choice else None,
            days=run.days if run else None,
            chip_hours=run.chip_hours if run else None,
            cost_usd=run.cost(price) if run and price is not None else None,
            why_not=None if choice else _why_not(found),
            given=given,
        )


@cache
def _exact_flops(architecture: Architecture, sequence_length: int) -> float:
    return training_flops(architecture, sequence_length, causal=True).model_per_token


def _why_not(found: Found) -> str:
    closest = found.closest
    if closest is None:
        return "no legal layout"
    memory = closest.memory
    return f"{format_bytes(memory.total)} a chip of {format_bytes(memory.usable)}"
