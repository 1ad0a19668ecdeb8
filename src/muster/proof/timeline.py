"""One step of a compiled program on one device, operation by operation, before it has ever run.

The main core runs the operations of the schedule one after the other. What each takes:

    fusions and copies     the compiler's estimated cycles over the chip's clock
    Pallas kernels         the larger of FLOPs over the share of the peak that attention, or a
                           matmul, was fitted to reach, and bytes over HBM's bandwidth
    collectives            `network`: bytes, devices, strategy, links
    copies between         bytes over HBM's bandwidth, one after the other, beside what computes;
    memories               over PCIe where one end is the host's memory
    no estimate            its result read and written once at HBM's bandwidth

What is asynchronous runs from its start on tracks of its own (a set of links, a copy engine, the
sparse core), each of which does one thing at a time; the main core waits where the result is due. A
loop is timed once and counted as often as it runs.

So these are estimates, and of three kinds: the compiler's, the shapes' and the links'. What is not
in them: launch gaps, stragglers, links shared by different mesh axes at once, HBM shared by copies
and computation beyond what the compiler's cycles hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.errors import BadInput
from muster.hardware import Chip, Cluster
from muster.proof.hlo.collectives import Collective, collective_of, mesh_for
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
from muster.proof.hlo.shape import HOST
from muster.proof.hlo.trips import Loops
from muster.proof.kernels import work_of
from muster.proof.names import label
from muster.proof.network import Interconnect, interconnect
from muster.roofline.efficiency import efficiency

MAIN, COPIES, HOST_LINK, SPARSE = "TensorCore", "copies", "host link", "SparseCore"
COMPUTE, KERNEL, COLLECTIVE, COPY, GUESSED = "compute", "kernel", "collective", "copy", "guessed"
UNROLLED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Something that runs on a track, from a begin on; seconds.

    Attributes:
        wait: whether the track does nothing but wait for another.
    """

    name: str
    label: str
    kind: str
    track: str
    begin: float
    seconds: float
    wait: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What an operation, or several of one label, takes in one step.

    Attributes:
        count: how often it runs.
        seconds: that it is busy, wherever.
        exposed: of the main core's time: its own, or that it waits for.
        collective: what it exchanges, for a collective.
    """

    name: str
    label: str
    kind: str
    count: int
    seconds: float
    exposed: float
    collective: Collective | None = None


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One step.

    Attributes:
        seconds: of the step.
        costs: of every operation, in the order of the schedule.
        spans: what runs when, loops unrolled a few times.
        notes: what had to be guessed, one line each.
    """

    seconds: float
    costs: tuple[Cost, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...]

    def of_kind(self, *kinds: str) -> float:
        """Seconds of the main core that operations of these kinds take or make it wait."""
        return sum(cost.exposed for cost in self.costs if cost.kind in kinds)

    @property
    def exposed_communication(self) -> float:
        """Seconds that the main core waits for collectives."""
        return self.of_kind(COLLECTIVE)

    @property
    def communication(self) -> float:
        """Seconds that collectives take, hidden or not."""
        return sum(cost.seconds for cost in self.costs if cost.kind == COLLECTIVE)

    def mfu(self, flops_per_device: float, peak_flops: float) -> float:
        """The model's FLOPs of one device and step over what its peak allows in that time."""
        return flops_per_device / (self.seconds * peak_flops)

    def costliest(self, most: int = 10) -> list[Cost]:
        """The operations that take most of the main core's time, merged by the model's names."""
        table: dict[tuple[str, str], Cost] = {}
        for cost in self.costs:
            key = (cost.kind, cost.label)
            before = table.get(key)
            table[key] = (
                replace(cost, collective=None)
                if before is None
                else replace(
                    before,
                    count=before.count + cost.count,
                    seconds=before.seconds + cost.seconds,
                    exposed=before.exposed + cost.exposed,
                )
            )
        return sorted(table.values(), key=lambda cost: -cost.exposed)[:most]


def time_program(
    program: Program,
    cluster: Cluster,
    *,
    mesh: Mapping[str, int] | None = None,
    coordinates: Iterable[tuple[int, ...]] = (),
) -> Timeline:
    """Time one step of a program.

    Args:
        program: scheduled for one device.
        cluster: the chips that it runs on.
        mesh: ways of every axis, outermost first; None for what the program names.
        coordinates: x, y, z, core and slice of every device, in the mesh's order.

    Raises:
        BadInput: the program has no schedule, or the chips are no TPUs.
    """
    if not program.scheduled:
        raise BadInput(
            f"{program.name} is not scheduled (no is_scheduled=true in its first line): give the "
            "text that the compiler wrote after all of its passes"
        )
    links = interconnect(cluster, tuple(coordinates))
    watch = _Watch(program, _rates(cluster.chip), links, mesh_for(program, mesh))
    part = watch.run(program.main)
    return Timeline(
        seconds=part.seconds,
        costs=tuple(part.costs.values()),
        spans=tuple(part.spans),
        notes=tuple(watch.notes),
    )


@dataclass(frozen=True, kw_only=True)
class _Rates:
    """What one device does in a second."""

    clock: float
    attention_flops: float
    matmul_flops: float
    hbm: float
    host: float


def _rates(chip: Chip) -> _Rates:
    clock = chip.fact("core.clock_hz")
    if clock is None or not isinstance(clock.value, int | float):
        raise BadInput(f"the clock of {chip.id} is not known; programs are timed on TPUs alone")
    fitted = efficiency(chip.id, "xla")
    host = chip.fact("host.pcie_per_chip_oneway")
    devices = chip.devices_per_chip
    known = host is not None and isinstance(host.value, int | float)
    return _Rates(
        clock=float(clock.value),
        attention_flops=chip.bf16_flops * fitted.attention / devices,
        matmul_flops=chip.bf16_flops * fitted.matmul / devices,
        hbm=chip.hbm_bandwidth / devices,
        host=(float(host.value) if known else chip.hbm_bandwidth / 100) / devices,  # type: ignore[union-attr,arg-type]
    )


@dataclass
class _Part:
    """What one run of a computation comes to."""

    seconds: float = 0.0
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass
class _Running:
    """A computation while it is walked through.

    Attributes:
        now: where the main core is.
        free: when each track is done with what it was given.
        due: of what was started and not waited for: when it is done, and its cost.
    """

    computation: Computation
    part: _Part = field(default_factory=_Part)
    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict)
    due: dict[str, tuple[float, tuple[str, str]]] = field(default_factory=dict)


@dataclass
class _Watch:
    """Times the computations of one program, each once."""

    program: Program
    rates: _Rates
    links: Interconnect
    mesh: Mapping[str, int]
    parts: dict[str, _Part] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loops = Loops(self.program)

    def run(self, computation: Computation) -> _Part:
        """One run of a computation."""
        if computation.name not in self.parts:
            at = _Running(computation)
            for op in computation.ops:
                self._step(at, op)
            at.part.seconds = max([at.now, *(end for end, _ in at.due.values())])
            self.parts[computation.name] = at.part
        return self.parts[computation.name]

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
        elif not is_free(op):
            self._compute(at, op)

    def _compute(self, at: _Running, op: Op) -> None:
        cycles = op.estimated_cycles
        if is_pallas(op):
            work = work_of(op, at.computation)
            self.notes[f"kernel {kernel_name(op)}: timed from {work.from_what}"] = None
            rate = self.rates.attention_flops if work.attention else self.rates.matmul_flops
            seconds = max(work.flops / rate, work.hbm_bytes / self.rates.hbm)
            kind = KERNEL
        elif cycles is not None:
            seconds, kind = cycles / self.rates.clock, COMPUTE
        else:
            seconds, kind = self._moved_twice(at, op) / self.rates.hbm, GUESSED
            self.notes[f"{op.opcode} without an estimate: timed from its bytes"] = None
        self._spend(at, op, kind, seconds)

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
        if not found.asynchronous:
            self._spend(at, op, COLLECTIVE, seconds, found)
            return
        key = self._add(at, op, COLLECTIVE, seconds, exposed=0.0, collective=found)
        end = self._occupy(at, op, COLLECTIVE, self.links.track(found), seconds)
        at.due[_ticket(op, inner)] = (end, key)

    def _copy(self, at: _Running, op: Op) -> None:
        arrays = list(op.shape.arrays())
        moved = arrays[1] if op.opcode == "slice-start" and len(arrays) > 1 else arrays[0]
        to_host = any(array.memory_space == HOST for array in arrays)
        track = HOST_LINK if to_host else COPIES
        seconds = moved.padded_bytes / (self.rates.host if to_host else self.rates.hbm)
        key = self._add(at, op, COPY, seconds, exposed=0.0)
        at.due[op.name] = (self._occupy(at, op, COPY, track, seconds), key)

    def _elsewhere(self, at: _Running, op: Op) -> None:
        """What another core runs meanwhile."""
        seconds = sum(self.run(called).seconds for called in self.program.called_by(op))
        key = self._add(at, op, GUESSED, seconds, exposed=0.0)
        at.due[op.name] = (self._occupy(at, op, GUESSED, SPARSE, seconds), key)

    def _fed(self, at: _Running, op: Op) -> None:
        """Another core was started early, and gets what it works on now."""
        start = op.operands[0]
        if start in at.due:
            _, key = at.due.pop(start)
            at.due[op.name] = (at.now + at.part.costs[key].seconds, key)

    def _wait(self, at: _Running, op: Op) -> None:
        held = held_collective(self.program, op) if op.opcode == "fusion" else None
        ticket = _ticket(op, held) if held is not None else _ticket_of_done(at.computation, op)
        if ticket not in at.due:
            return
        end, key = at.due.pop(ticket)
        waited = max(0.0, end - at.now)
        if waited:
            cost = at.part.costs[key]
            at.part.costs[key] = replace(cost, exposed=cost.exposed + waited)
            at.part.spans.append(
                Span(
                    name=op.name,
                    label=f"waits for {cost.label}",
                    kind=cost.kind,
                    track=MAIN,
                    begin=at.now,
                    seconds=waited,
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
            self._append(at, self.run(called), 1)

    def _loop(self, at: _Running, op: Op) -> None:
        trips = self.loops.trips(at.computation, op)
        if trips is None:
            self.notes[f"loop {op.name} does not say how often it runs: counted once"] = None
        _, body = loop_parts(self.program, op)
        if body is not None:
            self._append(at, self.run(body), 1 if trips is None else trips)

    def _append(self, at: _Running, inner: _Part, times: int) -> None:
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

    def _spend(
        self, at: _Running, op: Op, kind: str, seconds: float, found: Collective | None = None
    ) -> None:
        """Time of the main core."""
        key = self._add(at, op, kind, seconds, exposed=seconds, collective=found)
        at.part.spans.append(_span(op, at.part.costs[key].label, kind, MAIN, at.now, seconds))
        at.now += seconds

    def _occupy(self, at: _Running, op: Op, kind: str, track: str, seconds: float) -> float:
        """Time of another track; when it is done."""
        begin = max(at.now, at.free.get(track, 0.0))
        name = at.part.costs[at.computation.name, op.name].label
        at.part.spans.append(_span(op, name, kind, track, begin, seconds))
        at.free[track] = begin + seconds
        return at.free[track]

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
