"""Walks a schedule and keeps the time of the main core and of everything that runs beside it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from muster.errors import BadInput
from muster.hardware import Chip
from muster.proof.costs import (
    COLLECTIVE,
    COMPUTE,
    COPIES,
    COPY,
    FROM_HOST,
    GUESSED,
    KERNEL,
    MAIN,
    SPARSE,
    TO_HOST,
    Cost,
    Span,
)
from muster.proof.hlo.collectives import Collective, collective_of
from muster.proof.hlo.flops import matmul_flops_of
from muster.proof.hlo.kinds import (
    collective_inside,
    ends_collective,
    held_collective,
    is_dma,
    is_free,
    is_pallas,
    kernel_name,
)
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.schedule import Visit, costliest_branch, loop_parts
from muster.proof.hlo.shape import HOST, VMEM
from muster.proof.hlo.trips import Loops
from muster.proof.kernels import Work, attention_seconds, work_of
from muster.proof.names import label
from muster.proof.network import Interconnect
from muster.roofline.efficiency import efficiency
from muster.roofline.host_link import host_bandwidth

UNROLLED = 2  # of a loop after its first time, in what is shown
LANES, ALUS = 8 * 128, 4  # of a core's vector unit: the book's Part 2
# What a matmul's schedule leaves of the matrix unit, where nothing but its own loop holds it back:
# 0.92 (v6e), 0.96 (v5p), 0.965 (v5e) of 8192 x 8192 x 8192, 0.985 (v6e, 98304 KiB of VMEM) of
# 12288 x 5120 x 32768; bundles that the compiler of libtpu 0.0.52 scheduled, from no run.
MATMUL_SHARE = 0.95
COPY_SHARE = 0.55  # of HBM bandwidth that a copy to another layout reaches
NARROW = frozenset({"s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz"})


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one device does in a second.

    Attributes:
        clock: cycles.
        peak_flops: bf16 multiplications and additions of its matrix units.
        vector_ops: operations of its vector units.
        matmul_flops: that a kernel's matmul was fitted to reach.
        hbm: bytes.
        host: bytes, one way.
        matrix_unit: numbers along a side of a matrix unit.
    """

    clock: float
    peak_flops: float
    vector_ops: float
    matmul_flops: float
    hbm: float
    host: float
    matrix_unit: int


def rates_of(chip: Chip) -> Rates:
    """What one device of a chip does in a second.

    Raises:
        BadInput: its clock is not known.
    """
    clock = _number(chip, "core.clock_hz")
    if not clock:
        raise BadInput(f"the clock of {chip.id} is not known; programs are timed on TPUs alone")
    fitted = efficiency(chip.id, "xla")
    devices = chip.devices_per_chip
    cores = (_number(chip, "core.tensor_cores_per_chip") or 1.0) / devices
    return Rates(
        clock=clock,
        peak_flops=chip.bf16_flops / devices,
        vector_ops=LANES * ALUS * clock * cores,
        matmul_flops=chip.bf16_flops * fitted.matmul / devices,
        hbm=chip.hbm_bandwidth / devices,
        host=host_bandwidth(chip) / devices,
        matrix_unit=int(_number(chip, "core.mxu_dim") or 128),
    )


def _number(chip: Chip, fact_id: str) -> float | None:
    value = fact.value if (fact := chip.fact(fact_id)) is not None else None
    return float(value) if isinstance(value, int | float) else None


@dataclass
class Part:
    """What one run of a computation comes to."""

    seconds: float = 0.0
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """What kept tracks busy, and when."""

    key: tuple[str, str]
    tracks: tuple[str, ...]
    begin: float
    end: float


@dataclass
class _Running:
    """A computation while it is walked through.

    Attributes:
        now: where the main core is.
        free: when each track is done with what it was given.
        due: of what was started and not waited for: when it is done, and its cost.
        held: what has kept which tracks busy.
        outside: costs of what was still running as it began, by their keys.
    """

    computation: Computation
    part: Part = field(default_factory=Part)
    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict)
    due: dict[str, tuple[float, tuple[str, str]]] = field(default_factory=dict)
    held: list[_Held] = field(default_factory=list)
    outside: dict[tuple[str, str], Cost] = field(default_factory=dict)

    def inside(self, computation: Computation) -> "_Running":
        """A computation that begins now, beside what still runs."""
        now = self.now
        held = [
            replace(each, begin=max(0.0, each.begin - now), end=each.end - now)
            for each in self.held
            if each.end > now
        ]
        known = self.outside | self.part.costs
        return _Running(
            computation,
            free={track: end - now for track, end in self.free.items() if end > now},
            held=held,
            outside={
                each.key: replace(known[each.key], count=0, seconds=0.0, exposed=0.0)
                for each in held
            },
        )

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


@dataclass
class Watch:
    """Times the computations of one program, each once."""

    program: Program
    rates: Rates
    links: Interconnect
    mesh: Mapping[str, int]
    parts: dict[str, Part] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loops = Loops(self.program)

    def run(self, computation: Computation, around: _Running | None = None) -> Part:
        """One run of a computation.

        Args:
            computation: what runs.
            around: what calls it; None where nothing still runs as it begins.
        """
        at = around.inside(computation) if around else _Running(computation)
        alone = not at.free
        if alone and computation.name in self.parts:
            return self.parts[computation.name]
        for op in computation.ops:
            self._step(at, op)
        at.part.seconds = max([at.now, *(end for end, _ in at.due.values())])
        if alone:
            self.parts[computation.name] = at.part
        return at.part

    def _step(self, at: _Running, op: Op) -> None:
        inner = collective_inside(self.program, op)
        if inner is not None:
            self._collective(at, op, inner)
        elif op.opcode == "while":
            self._loop(at, op)
        elif op.opcode in {"call", "conditional"}:
            self._inline(at, op)
        elif is_dma(op):
            self._copy(at, op)
        elif op.base in {"call", "async"} and op.phase == "start":
            self._elsewhere(at, op)
        elif op.phase == "update" and op.base in {"call", "async"}:
            self._fed(at, op)
        elif op.phase == "done" or ends_collective(self.program, op):
            self._wait(at, op)
        elif op.estimated_cycles is not None or not is_free(op):
            self._compute(at, op)

    def _compute(self, at: _Running, op: Op) -> None:
        cycles = op.estimated_cycles
        if is_pallas(op):
            work = work_of(op, at.computation)
            self.notes[f"kernel {kernel_name(op)}: timed from {work.from_what}"] = None
            seconds = max(self._kernel_computes(work), work.hbm_bytes / self.rates.hbm)
            kind = KERNEL
        elif cycles is not None:
            estimate = cycles / self.rates.clock
            seconds, kind = min(estimate, self._matmul(at, op), self._relayout(at, op)), COMPUTE
        else:
            seconds, kind = self._moved_twice(at, op) / self.rates.hbm, GUESSED
            self.notes[f"{op.opcode} without an estimate: timed from its bytes"] = None
        self._spend(at, op, kind, seconds)

    def _kernel_computes(self, work: Work) -> float:
        """Seconds of the matrix and vector units for a kernel."""
        if not work.attention or not work.head_dim:
            return work.flops / self.rates.matmul_flops
        return attention_seconds(
            work,
            matmul_peak=self.rates.peak_flops,
            vector_rate=self.rates.vector_ops,
            matrix_unit=self.rates.matrix_unit,
        )

    def _matmul(self, at: _Running, op: Op) -> float:
        """Seconds of a matmul as its schedule runs: a bound on the compiler's earlier estimate.

            max(FLOPs / (0.95 peak), bytes / HBM bandwidth)

        FLOPs of whole tiles of the matrix unit (heads of 128 fill half of one of 256).
        `estimated_cycles` is guessed before the loop is scheduled, to choose its window. Where
        windows are small it guesses a third too much (v6e, 8192 x 8192 x 8192: 2.98 million
        cycles, of which the schedule needs 2.28); see MATMUL_SHARE. Infinite where an operation
        holds no matmul, or one of narrow numbers, whose peak is another.
        """
        by_name = at.computation.by_name
        shapes = [op.shape, *(by_name[name].shape for name in op.operands if name in by_name)]
        if any(array.dtype in NARROW for shape in shapes for array in shape.arrays()):
            return math.inf
        tile = self.rates.matrix_unit
        flops = matmul_flops_of(self.program, op, at.computation, tile=tile)
        if not flops:
            return math.inf
        computes = flops / (MATMUL_SHARE * self.rates.peak_flops)
        return max(computes, self._moved(at, op) / self.rates.hbm)

    def _relayout(self, at: _Running, op: Op) -> float:
        """Seconds of a copy to another layout: a bound on the compiler's earlier estimate.

            (bytes read + bytes written) / (0.55 HBM bandwidth)

        A copy's loop is scheduled to less than its memory traffic takes: of v5e, to transpose a
        bf16 tile of 128 rows and 640 columns of a gathered weight, 380 cycles, where its bytes
        take 900 and the estimate made before is 9,696. 0.55 is what the compiler itself takes
        elementwise fusions to reach of HBM. Infinite for what is no copy.
        """
        if op.opcode != "copy":
            return math.inf
        return self._moved(at, op) / (COPY_SHARE * self.rates.hbm)

    def _moved(self, at: _Running, op: Op) -> float:
        """Bytes of HBM that an operation reads and writes, every array once."""
        by_name = at.computation.by_name
        shapes = [by_name[name].shape for name in op.operands if name in by_name]
        arrays = [array for shape in (*shapes, op.shape) for array in shape.arrays()]
        return float(sum(array.padded_bytes for array in arrays if array.memory_space != VMEM))

    def _moved_twice(self, at: _Running, op: Op) -> float:
        """Bytes that an operation reads and writes, taken to be twice what it makes."""
        made = op.shape.padded_bytes
        if op.opcode == "dynamic-update-slice" and op.operands[1] in at.computation.by_name:
            made = at.computation.by_name[op.operands[1]].shape.padded_bytes  # in place
        return 2.0 * made

    def _collective(self, at: _Running, op: Op, inner: Op) -> None:
        visit = Visit(op=op, times=1, computation=at.computation)
        found = collective_of(self.program, visit, inner, self.mesh)
        seconds = self.links.seconds(found)
        if (apart := self.links.apart(found)) > 1:
            axes = " and ".join(found.axes)
            self.notes[f"chips of {axes} stand {apart} apart: {apart} groups share links"] = None
        key = self._add(at, op, COLLECTIVE, seconds, exposed=0.0, collective=found)
        end = self._occupy(at, op, COLLECTIVE, self.links.tracks(found), seconds)
        if found.asynchronous:
            at.due[_ticket(op, inner)] = (end, key)
        else:
            self._wait_until(at, op, end, key)

    def _copy(self, at: _Running, op: Op) -> None:
        """A copy between memories; of a slice, where one is read or written."""
        arrays = [array for array in op.shape.arrays() if array.numbers > 1]
        moved = min((array.padded_bytes for array in arrays), default=0)
        made = next((op.shape if op.opcode == "copy-start" else op.shape.elements[1]).arrays())
        if any(array.memory_space == HOST for array in arrays):
            track = TO_HOST if made.memory_space == HOST else FROM_HOST
            seconds = moved / self.rates.host
        else:
            track, seconds = COPIES, moved / self.rates.hbm
        key = self._add(at, op, COPY, seconds, exposed=0.0)
        at.due[op.name] = (self._occupy(at, op, COPY, (track,), seconds), key)

    def _elsewhere(self, at: _Running, op: Op) -> None:
        """What another core runs meanwhile."""
        seconds = sum(self.run(called).seconds for called in self.program.called_by(op))
        key = self._add(at, op, GUESSED, seconds, exposed=0.0)
        at.due[op.name] = (self._occupy(at, op, GUESSED, (SPARSE,), seconds), key)

    def _fed(self, at: _Running, op: Op) -> None:
        """Another core was started early, and gets what it works on now."""
        start = op.operands[0]
        if start in at.due:
            _, key = at.due.pop(start)
            at.due[op.name] = (at.now + at.part.costs[key].seconds, key)

    def _wait(self, at: _Running, op: Op) -> None:
        held = held_collective(self.program, op) if op.opcode == "fusion" else None
        ticket = _ticket(op, held) if held is not None else _ticket_of_done(at.computation, op)
        if ticket in at.due:
            self._wait_until(at, op, *at.due.pop(ticket))

    def _wait_until(self, at: _Running, op: Op, end: float, key: tuple[str, str]) -> None:
        """The main core waits for what `key` costs, if it is not done by now."""
        if end <= at.now:
            return
        for cause, begin, until in at.causes(key, end):
            cost = at.part.costs.get(cause) or at.outside[cause]
            at.part.costs[cause] = replace(cost, exposed=cost.exposed + until - begin)
            at.part.spans.append(
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
        at.now = end

    def _inline(self, at: _Running, op: Op) -> None:
        if op.opcode == "conditional":
            called = costliest_branch(self.program, op)
        else:
            called = next(self.program.called_by(op), None)
        if called is not None:
            self._append(at, self.run(called, at), 1)

    def _loop(self, at: _Running, op: Op) -> None:
        trips = self.loops.trips(at.computation, op)
        if trips is None:
            self.notes[f"loop {op.name} does not say how often it runs: counted once"] = None
        _, body = loop_parts(self.program, op)
        if body is None or trips == 0:
            return
        self._append(at, self.run(body, at), 1)
        if trips is not None and trips > 1:
            self._append(at, self.run(body), trips - 1)

    def _append(self, at: _Running, inner: Part, times: int) -> None:
        """Put a part in its place, as often as it runs; the first few times are shown."""
        for key, cost in inner.costs.items():
            before = at.part.costs.get(key)
            at.part.costs[key] = replace(
                cost,
                count=cost.count * times + (before.count if before else 0),
                seconds=cost.seconds * times + (before.seconds if before else 0.0),
                exposed=cost.exposed * times + (before.exposed if before else 0.0),
            )
        shown = min(times, UNROLLED)
        for number in range(shown):
            begin = at.now + number * inner.seconds
            at.part.spans += [replace(span, begin=begin + span.begin) for span in inner.spans]
        if times > shown:
            left = (times - shown) * inner.seconds
            at.part.spans.append(
                Span(
                    name="repeated",
                    label=f"{times - shown} times more of the same",
                    kind=COMPUTE,
                    track=MAIN,
                    begin=at.now + shown * inner.seconds,
                    seconds=left,
                )
            )
        at.now += times * inner.seconds

    def _around(self, computation: Computation) -> str:
        """The model's name of the loop that a computation is the body of."""
        _, loop = self.loops.callers.get(computation.name, (None, None))
        return loop.op_name if loop else ""

    def _spend(self, at: _Running, op: Op, kind: str, seconds: float) -> None:
        """Time of the main core."""
        key = self._add(at, op, kind, seconds, exposed=seconds)
        at.part.spans.append(_span(op, at.part.costs[key].label, kind, MAIN, at.now, seconds))
        at.now += seconds

    def _occupy(
        self, at: _Running, op: Op, kind: str, tracks: tuple[str, ...], seconds: float
    ) -> float:
        """Time of other tracks, shown on the first of them; when they are done."""
        begin = max([at.now, *(at.free.get(track, 0.0) for track in tracks)])
        name = at.part.costs[at.computation.name, op.name].label
        at.part.spans.append(_span(op, name, kind, tracks[0], begin, seconds))
        at.free |= dict.fromkeys(tracks, begin + seconds)
        key = (at.computation.name, op.name)
        at.held.append(_Held(key=key, tracks=tracks, begin=begin, end=begin + seconds))
        return begin + seconds

    def _add(
        self,
        at: _Running,
        op: Op,
        kind: str,
        seconds: float,
        *,
        exposed: float,
        collective: Collective | None = None,
    ) -> tuple[str, str]:
        key = (at.computation.name, op.name)
        at.part.costs[key] = Cost(
            name=op.name,
            label=label(self.program, op, at.computation, self._around(at.computation)),
            kind=kind,
            count=1,
            seconds=seconds,
            exposed=exposed,
            collective=collective,
        )
        return key


def _span(op: Op, text: str, kind: str, track: str, begin: float, seconds: float) -> Span:
    return Span(name=op.name, label=text, kind=kind, track=track, begin=begin, seconds=seconds)


def _ticket(op: Op, inner: Op) -> str:
    """What ties the end of something asynchronous to its start."""
    if op.opcode == "fusion":
        return f"channel {inner.attributes.get('channel_id', op.name)}"
    if op.opcode == "send":
        return _rendezvous(op)
    return op.name


def _ticket_of_done(computation: Computation, op: Op) -> str:
    start = computation.by_name.get(op.operands[0]) if op.operands else None
    if start is None:
        return op.name
    return _rendezvous(start) if start.opcode == "recv" else start.name


def _rendezvous(op: Op) -> str:
    said = op.attributes.get("frontend_attributes", "")
    _, _, after = said.partition('_xla_host_transfer_rendezvous="')
    return "rendezvous " + (after.split('"')[0] if after else op.name)
