"""`muster verify` and `muster inspect` on a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from muster.planner.plan_file import PlannedRun
from muster.proof.expected import AxesTraffic, large
from muster.proof.findings import Finding
from muster.proof.memory import predicted_memory
from muster.proof.others import Tried
from muster.proof.published import steps_that_were_near
from muster.proof.reading import CollectiveVerdict, Reading
from muster.proof.timeline import Timeline
from muster.proof.verdict import Verdict
from muster.report.columns import Column, shown
from muster.report.terminal import BAD, GOOD, QUIET, WARN, Grid, console, title
from muster.report.words import pieces
from muster.units import format_bytes, format_flops, format_seconds

COLLECTIVES = (
    Column("kind", left=True),
    Column("axes", left=True),
    Column("count", rank=2),
    Column("bytes a chip"),
    Column("strategy", left=True, rank=1, folds=True),
    Column("time"),
    Column("exposed"),
)
TRAFFIC = (
    Column("axes", left=True),
    Column("what", left=True, folds=True),
    Column("plan"),
    Column("compiled"),
    Column("ratio"),
    Column("compiled as", left=True, rank=1, folds=True),
)
MEMORY = (
    Column("", left=True),
    Column("compiler"),
    Column("plan"),
    Column("compiler - plan"),
)
OTHERS = (
    Column("layout", left=True, folds=True),
    Column("remat", left=True),
    Column("verdict", left=True, folds=True),
    Column("plan's step", rank=1),
)
COSTS = (
    Column("operation", left=True, folds=True),
    Column("runs", rank=1),
    Column("time", rank=2),
    Column("of the core"),
)


def print_verdict(verdict: Verdict) -> None:
    """Print the whole verdict on a plan."""
    screen = console()
    done = verdict.compilation
    planned = verdict.planned
    versions = ", ".join(f"{name} {number}" for name, number in done.versions.items())
    ended = "ended after" if done.status == "died" else "compiled in"
    how = "found compiled" if done.kept else f"{ended} {format_seconds(done.compile_seconds)}"
    screen.print(title(f"{planned.architecture.name} on {planned.cluster.name}", how))
    screen.print(_headline(verdict))
    layout = f"{planned.layout}, remat {planned.remat.value}{pieces(planned.layout)}"
    screen.print(Text(f"{layout}; {versions}", style=QUIET))
    screen.print()
    _memory(verdict, screen)
    if verdict.timeline is not None:
        _step(verdict, screen)
        print_traffic(verdict.traffic, screen)
        print_collectives(verdict.collectives, screen)
        print_costs(verdict.timeline, screen)
    print_findings(verdict.findings, screen)
    for note in verdict.notes:
        screen.print(Text(f"! {plain(note)}", style=WARN))


def print_reading(reading: Reading, name: str) -> None:
    """Print what a program tells of itself."""
    screen = console()
    timeline = reading.timeline
    devices = reading.program.devices
    many = f"{devices:,} device{'s' * (devices != 1)}"
    screen.print(title(name, f"{plain(reading.program.name)}, {many}"))
    screen.print(
        Text(
            f"step {format_seconds(timeline.seconds)}, estimated from the schedule; computes "
            f"{format_seconds(_busy(timeline))} as scheduled (the compiler's "
            f"{reading.cycles.compute:,} cycles and kernels: "
            f"{format_seconds(reading.compute_seconds)}), waits "
            f"{format_seconds(timeline.exposed_communication)} for collectives"
            f"{f' and {format_seconds(_other(timeline))} for copies' if _other(timeline) else ''}; "
            f"{format_flops(reading.flops)} of matmuls and kernels"
        )
    )
    screen.print()
    print_collectives(reading.collectives, screen)
    print_costs(timeline, screen)
    print_findings(reading.findings, screen)
    for note in reading.notes:
        screen.print(Text(f"! {plain(note)}", style=WARN))


def plain(text: str) -> str:
    r"""What a program's text says, with what would move the cursor or colour the screen escaped.

    >>> plain("jit(f)/\x1b[2Jmul")
    'jit(f)/\\x1b[2Jmul'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _headline(verdict: Verdict) -> Text:
    done, memory = verdict.compilation, verdict.memory
    if memory is not None:
        share = memory.total / memory.usable
        figures = f"{format_bytes(memory.total)} of {format_bytes(memory.usable)} ({share:.0%})"
        if memory.fits:
            return Text(f"passes: the TPU compiler counts {figures}", style=GOOD)
        return Text(f"does not fit: the TPU compiler counts {figures}", style=BAD)
    if done.status == "too_large":
        counted = predicted_memory(verdict.planned).get("total")
        beside = f" (the plan counts {format_bytes(counted)})" if counted else ""
        return Text(
            f"does not fit: the TPU compiler needs {format_bytes(done.needed)} of "
            f"{format_bytes(done.usable)} of {done.space}{beside}",
            style=BAD,
        )
    if done.status == "died" and not done.compilers_fault:  # stopped, or this machine's fault
        return Text(f"no answer: {done.message}", style=BAD)
    return Text(f"does not compile: {done.message}", style=BAD)


def _memory(verdict: Verdict, screen: Console) -> None:
    memory = verdict.memory
    if memory is None:
        return
    cells: list[dict[str, str | Text]] = [
        {
            "": term.name,
            "compiler": _bytes(term.compiled),
            "plan": _bytes(term.predicted),
            "compiler - plan": _difference(term.compiled, term.predicted),
        }
        for term in memory.terms
    ]
    cells.append(
        {
            "": "total",
            "compiler": format_bytes(memory.total),
            "plan": format_bytes(memory.predicted_total) if memory.predicted_total else "-",
            "compiler - plan": _difference(memory.total, memory.predicted_total or None),
        }
    )
    screen.print(title("Memory", f"of one device, which has {format_bytes(memory.usable)}"))
    screen.print(shown(MEMORY, cells))
    close = memory.close or not memory.predicted_total
    screen.print(Text(memory.why, style=QUIET if close else WARN))
    screen.print()


def _bytes(size: float | None) -> str:
    return "-" if size is None else format_bytes(size)


def _difference(compiled: float | None, planned: float | None) -> str:
    if compiled is None or planned is None:
        return ""
    apart = compiled - planned
    sign = "-" if apart < 0 else "+" if apart > 0 else ""
    return sign + format_bytes(abs(apart))


def _step(verdict: Verdict, screen: Console) -> None:
    timeline = verdict.timeline
    assert timeline is not None
    assert verdict.mfu is not None
    table = Grid(header=True, gap=2)
    for name, justify in (("", "left"), ("compiler", "right"), ("plan", "right"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    planned = verdict.planned
    table.add_cells(
        "FLOPs",
        format_flops(verdict.compiled_flops),
        format_flops(verdict.predicted_flops),
        "matmuls and attention of one device, loops multiplied out",
    )
    parts = _seconds_of(planned)
    busy, other = _busy(timeline), _other(timeline)
    table.add_cells(
        "computes",
        format_seconds(busy),
        _seconds(parts, "compute", "hbm"),
        f"as scheduled; the compiler's {verdict.compute_cycles:,} cycles and kernels: "
        f"{format_seconds(verdict.compute_seconds)}",
    )
    table.add_cells(
        "waits",
        format_seconds(timeline.exposed_communication),
        _seconds(parts, "exposed"),
        f"for collectives, of {format_seconds(timeline.communication)} in all",
    )
    if other > 0.005 * timeline.seconds:
        table.add_cells(
            "other waits", format_seconds(other), "", "for copies, and the host's memory"
        )
    table.add_cells(
        "step",
        format_seconds(timeline.seconds),
        format_seconds(planned.step_seconds),
        f"estimated from the schedule: no chip has run it; {steps_that_were_near()}",
    )
    table.add_cells("MFU", f"{verdict.mfu:.1%}", f"{planned.mfu:.1%}", "6N")
    screen.print(title("Step"))
    screen.print(table)
    screen.print()


def _busy(timeline: Timeline) -> float:
    return timeline.of_kind("compute", "kernel", "guessed")


def _other(timeline: Timeline) -> float:
    """What is neither work nor a wait for collectives, seconds; what sums leave over is none."""
    other = timeline.seconds - _busy(timeline) - timeline.exposed_communication
    return other if other > 1e-9 * timeline.seconds else 0.0


def _seconds_of(planned: PlannedRun) -> Mapping[str, float]:
    estimate = planned.document.get("estimate")
    parts = estimate.get("seconds") if isinstance(estimate, Mapping) else None
    return parts if isinstance(parts, Mapping) else {}


def _seconds(parts: Mapping[str, float], *names: str) -> str:
    found = [parts[name] for name in names if isinstance(parts.get(name), int | float)]
    return format_seconds(sum(found)) if found else ""


def print_traffic(rows: Sequence[AxesTraffic], screen: Console) -> None:
    """Print what goes over each group of mesh axes beside what the plan expects there."""
    kept = large(rows)
    if not kept:
        return
    screen.print(title("Traffic", "of one device and step, by the mesh axes that it joins"))
    cells: list[dict[str, str | Text]] = [
        {
            "axes": plain(" x ".join(row.axes)) or "-",
            "what": row.what or "not in the plan",
            "plan": format_bytes(row.expected) if row.expected else "-",
            "compiled": format_bytes(row.compiled) if row.compiled else "-",
            "ratio": f"{row.ratio:.2f}" if row.ratio is not None else "",
            "compiled as": ", ".join(row.compiled_kinds),
        }
        for row in kept
    ]
    screen.print(shown(TRAFFIC, cells))
    screen.print()


def print_collectives(rows: Sequence[CollectiveVerdict], screen: Console) -> None:
    """Print what a step sends, the longest first."""
    if not rows:
        return
    screen.print(title("Collectives", "of one step; exposed is what does not hide behind work"))
    cells: list[dict[str, str | Text]] = [
        {
            "kind": f"{plain(row.kind)}{'' if row.asynchronous else ' (sync)'}",
            "axes": plain(" x ".join(row.axes)) or "-",
            "count": f"{row.count:,}",
            "bytes a chip": format_bytes(row.bytes_per_chip),
            "strategy": plain(row.strategy) or "-",
            "time": format_seconds(row.seconds),
            "exposed": format_seconds(row.exposed_seconds),
        }
        for row in rows
    ]
    screen.print(shown(COLLECTIVES, cells))
    screen.print()


def print_costs(timeline: Timeline, screen: Console) -> None:
    """Print the operations that take most of the core's time."""
    screen.print(title("Costliest operations", "by the model's own names"))
    cells: list[dict[str, str | Text]] = [
        {
            "operation": plain(cost.label),
            "runs": f"{cost.count:,}",
            "time": format_seconds(cost.seconds),
            "of the core": f"{cost.exposed / timeline.seconds:.1%}" if timeline.seconds else "-",
        }
        for cost in timeline.costliest()
    ]
    screen.print(shown(COSTS, cells))
    screen.print()


def print_findings(findings: Sequence[Finding], screen: Console) -> None:
    """Print what could be better, the costliest first."""
    if not findings:
        return
    remark = "the costliest first; several may be of the same milliseconds"
    screen.print(title("Findings", remark))
    table = Grid(gap=2)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    for each in findings:
        cost = format_seconds(each.cost_seconds) if each.cost_seconds else "-"
        table.add_cells(cost, plain(f"{each.what}; better: {each.change}"))
    screen.print(table)
    screen.print()


def print_others(tried: Sequence[Tried]) -> None:
    """Print the layouts that were tried after the plan's own."""
    if not tried:
        return
    screen = console()
    screen.print(title("The next best layouts", "each as `muster plan` would plan it"))
    cells: list[dict[str, str | Text]] = [
        {
            "layout": str(each.planned.layout),
            "remat": each.planned.remat.value,
            "verdict": _verdict_on(each),
            "plan's step": format_seconds(each.planned.step_seconds),
        }
        for each in tried
    ]
    styles = [GOOD if each.passes else None for each in tried]
    screen.print(shown(OTHERS, cells, styles=styles))


def _verdict_on(tried: Tried) -> str:
    if tried.needed is not None and tried.usable is not None:
        said = f"{format_bytes(tried.needed)} of {format_bytes(tried.usable)}"
        return f"passes: {said}" if tried.passes else f"does not fit: {said}"
    return tried.compilation.message or tried.compilation.status
