"""A computation while it is walked through: where its core is, and what runs beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from muster.proof.costs import COMPUTE, MAIN, Cost, Span
from muster.proof.hlo.collectives import Collective
from muster.proof.hlo.program import Computation, Op

UNROLLED = 2  # of a loop after its first time, in what is shown
_MANY = 200


@dataclass
class Part:
    """What one run of a computation comes to."""

    seconds: float = 0.0
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What kept tracks busy, and when."""

    key: tuple[str, str]
    tracks: tuple[str, ...]
    begin: float
    end: float


@dataclass
class Running:
    """A computation while it is walked through.

    Attributes:
        now: where the main core is.
        free: when each track is done with what it was given.
        due: of what was started and not waited for: when it is done, and its cost.
        held: what has kept which tracks busy.
        unfed: collectives of cores that were started and wait for data: their tracks and seconds.
        outside: costs of what was still running as it began, by their keys.
    """

    computation: Computation
    part: Part = field(default_factory=Part)
    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict)
    due: dict[str, tuple[float, tuple[str, str]]] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    unfed: dict[str, tuple[Op, tuple[str, ...], float]] = field(default_factory=dict)
    outside: dict[tuple[str, str], Cost] = field(default_factory=dict)

    def inside(self, computation: Computation) -> "Running":
        """A computation that begins now, beside what still runs."""
        now = self.now
        held = [
            replace(each, begin=max(0.0, each.begin - now), end=each.end - now)
            for each in self.held
            if each.end > now
        ]
        known = self.outside | self.part.costs
        return Running(
            computation,
            free={track: end - now for track, end in self.free.items() if end > now},
            held=held,
            outside={
                each.key: replace(known[each.key], count=0, seconds=0.0, exposed=0.0)
                for each in held
            },
        )

    def spend(self, op: Op, kind: str, seconds: float, label: str) -> None:
        """Time of the main core."""
        self.add(op, kind, seconds, label, exposed=seconds)
        self.part.spans.append(_span(op, label, kind, MAIN, self.now, seconds))
        self.now += seconds

    def occupy(self, op: Op, kind: str, tracks: tuple[str, ...], seconds: float) -> float:
        """Time of other tracks, shown on the first of them; when they are done.

        A collective of groups of one device keeps none of them busy.
        """
        if not tracks:
            return self.now + seconds
        begin = max([self.now, *(self.free.get(track, 0.0) for track in tracks)])
        key = (self.computation.name, op.name)
        name = self.part.costs[key].label
        self.part.spans.append(_span(op, name, kind, tracks[0], begin, seconds))
        self.free |= dict.fromkeys(tracks, begin + seconds)
        if len(self.held) > _MANY:  # what is over is no cause of a wait to come
            self.held = [each for each in self.held if each.end > self.now]
        self.held.append(Held(key=key, tracks=tracks, begin=begin, end=begin + seconds))
        return begin + seconds

    def add(
        self,
        op: Op,
        kind: str,
        seconds: float,
        label: str,
        *,
        exposed: float = 0.0,
        collective: Collective | None = None,
    ) -> tuple[str, str]:
        """Write down what an operation costs, under the key that comes back."""
        key = (self.computation.name, op.name)
        self.part.costs[key] = Cost(
            name=op.name,
            label=label,
            kind=kind,
            count=1,
            seconds=seconds,
            exposed=exposed,
            collective=collective,
        )
        return key

    def wait_until(self, op: Op, end: float, key: tuple[str, str]) -> None:
        """The main core waits for what `key` costs, if it is not done by now."""
        if end <= self.now:
            return
        for cause, begin, until in self.causes(key, end):
            cost = self.part.costs.get(cause) or self.outside[cause]
            self.part.costs[cause] = replace(cost, exposed=cost.exposed + until - begin)
            self.part.spans.append(
                Span(
                    name=op.name,
                    label=f"waits for {cost.label}",
                    kind=cost.kind,
                    track=MAIN,
                    begin=begin,
                    seconds=until - begin,
                    wait=True,
                )
            )
        self.now = end

    def append(self, inner: Part, times: int) -> None:
        """Put a part in its place, as often as it runs; the first few times are shown."""
        for key, cost in inner.costs.items():
            before = self.part.costs.get(key)
            self.part.costs[key] = replace(
                cost,
                count=cost.count * times + (before.count if before else 0),
                seconds=cost.seconds * times + (before.seconds if before else 0.0),
                exposed=cost.exposed * times + (before.exposed if before else 0.0),
            )
        shown = min(times, UNROLLED)
        for number in range(shown):
            begin = self.now + number * inner.seconds
            self.part.spans += [replace(span, begin=begin + span.begin) for span in inner.spans]
        if times > shown:
            left = (times - shown) * inner.seconds
            self.part.spans.append(
                Span(
                    name="repeated",
                    label=f"{times - shown} times more of the same",
                    kind=COMPUTE,
                    track=MAIN,
                    begin=self.now + shown * inner.seconds,
                    seconds=left,
                )
            )
        self.now += times * inner.seconds

    def causes(
        self, key: tuple[str, str], end: float
    ) -> Iterator[tuple[tuple[str, str], float, float]]:
        """What a wait until `end` for what `key` costs is for: itself, or what was before it."""
        own = next((set(held.tracks) for held in self.held if held.key == key), set())
        now = self.now
        for held in self.held:
            begin, until = max(now, held.begin), min(end, held.end)
            if until <= begin or own.isdisjoint(held.tracks):
                continue
            if begin > now:  # nothing that began here: a track was busy from before
                yield key, now, begin
            yield held.key, begin, until
            now = until
        if end > now:
            yield key, now, end


def _span(op: Op, text: str, kind: str, track: str, begin: float, seconds: float) -> Span:
    return Span(name=op.name, label=text, kind=kind, track=track, begin=begin, seconds=seconds)
