"""`muster tune` on a terminal."""

from collections.abc import Iterator

from rich.padding import Padding
from rich.text import Text

from muster.proof.published import how_far_off
from muster.report.columns import Column, shown
from muster.report.terminal import BAD, GOOD, QUIET, WARN, Grid, console, title
from muster.report.words import glued
from muster.tune.flags import options
from muster.tune.layouts import layout_name
from muster.tune.outcome import explanation, findings, verdict, winner
from muster.tune.search import Rung, Trial, Tuning
from muster.units import format_bytes, format_seconds

TRIALS = (
    Column("what", left=True, folds=True),
    Column("step"),
    Column("gain"),
    Column("cycles ms"),
    Column("waits", rank=1),
    Column("memory", rank=2),
    Column("verdict", left=True),
)
RUNGS: dict[Rung, tuple[str, str]] = {
    "plan": ("The plan", "as it was given"),
    "layout": ("Layouts", "the planner's best; gain: over the best until then"),
    "alone": ("Each choice alone", "on the best layout; gain: over that layout"),
    "together": ("What gained, together", "one after the other; gain: over those kept before"),
    "runner-up": ("Other layouts", "with what gained on the best; gain: over the best"),
}
_STYLES = {"best": GOOD, "gains": GOOD, "does not fit": BAD, "died": BAD}


def print_tuning(tuning: Tuning, *, spent: str) -> None:
    """Print what was tried, the winner and why."""
    screen = console()
    given = tuning.given
    screen.print(title(f"{given.architecture.name} on {given.cluster.name}", spent))
    screen.print(_headline(tuning))
    screen.print()
    for rung, (heading, remark) in RUNGS.items():
        trials = [each for each in tuning.trials if each.rung == rung]
        if not trials:
            continue
        screen.print(title(heading, remark))
        rows = [_cells(each, tuning) for each in trials]
        styles = [_STYLES.get(str(row["verdict"])) for row in rows]
        screen.print(shown(TRIALS, rows, styles=styles))
        screen.print()
    screen.print(title("Why"))
    lines = Grid(gap=1)
    lines.add_column()
    lines.add_column(ratio=1)
    for sentence in (*explanation(tuning), *_left_out(tuning)):
        lines.add_cells("-", sentence)
    for warning in (*findings(tuning), how_far_off()):
        lines.add_cells("!", warning, style=WARN)
    screen.print(lines)
    planned = winner(tuning)
    if planned is not None and planned.compiler_options:
        screen.print()
        screen.print(title("Flags", "in the plan; `muster train` gives them to the compiler"))
        for name, value in planned.compiler_options.items():
            screen.print(Text(f"--{name}={value}", style=QUIET))


def print_flags() -> None:
    """Print the compiler options that are worth trying."""
    screen = console()
    for option in options():
        of = [f"on {', '.join(option.chips)}"] if option.chips else []
        of += [f"with {option.where}"] if option.where != "always" else []
        of += [f"with {name}={value}" for name, value in option.needs.items()]
        screen.print(
            title(f"{option.name}={','.join(option.values)}", "; ".join(of)), overflow="fold"
        )
        screen.print(Padding(glued(f"{option.what} ({option.source})"), (0, 0, 0, 4)))


def _headline(tuning: Tuning) -> Text:
    best, first = tuning.best, tuning.first
    ended = "interrupted; " if tuning.interrupted else ""
    if best is None:
        chip = tuning.given.cluster.chip
        room = f"{format_bytes(chip.hbm_bytes / chip.devices_per_chip)} that a program may have"
        said = f"nothing fits the {room}" if tuning.trials else "nothing was compiled"
        return Text(f"{ended}{said}", style=BAD)
    assert best.seconds is not None
    layout = layout_name(best.planned.layout, best.planned.remat)
    step = format_seconds(best.seconds)
    if best is first:
        said = "nothing beats the plan" if len(tuning.trials) > 1 else "only the plan was compiled"
        return Text(f"{ended}{said}: {step} a step, {layout}", style=GOOD)
    saved = ""
    if first is not None and first.seconds is not None:
        saved = f", {1 - best.seconds / first.seconds:.1%} less than the plan's"
    return Text(f"{ended}best: {step} a step{saved}; {layout}", style=GOOD)


def _cells(trial: Trial, tuning: Tuning) -> dict[str, str | Text]:
    reading, needed = trial.answer.reading, trial.answer.needed_bytes
    return {
        "what": trial.what,
        "step": format_seconds(reading.step_seconds) if reading else "-",
        "gain": "" if trial.gain is None or trial.rung == "plan" else f"{trial.gain:+.1%}",
        "cycles ms": _milliseconds(reading.cycles_seconds) if reading else "-",
        "waits": format_seconds(reading.exposed_seconds) if reading else "-",
        "memory": format_bytes(needed) if needed else "-",
        "verdict": verdict(trial, tuning),
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _left_out(tuning: Tuning) -> Iterator[str]:
    if tuning.left_out:
        layouts = f"{tuning.left_out} more layout{'s' * (tuning.left_out > 1)}"
        can = "can fit" if tuning.best is None else "can win"
        yield (
            f"not compiled: {layouts}, of which none {can} by the planner, and by how far it was "
            "off on those above"
        )
    if tuning.skipped:
        kept = not any(each.answer.note for each in tuning.trials)
        again = "; the same command again goes on from here" if kept else ""
        yield f"for {tuning.skipped} more trials the budget was too small{again}"
