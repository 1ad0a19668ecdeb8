"""What a search came to: the winner as a plan, why it won, and everything as JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

from muster.planner.plan_file import PlannedRun
from muster.proof.published import how_far_off
from muster.tune.choices import Flag, with_options
from muster.tune.layouts import layout_name
from muster.tune.search import LEAST_GAIN, Trial, Tuning
from muster.tune.trial import Reading, reading_json
from muster.units import format_bytes, format_seconds

# Changes of the step's parts smaller than this are not worth a word.
WORTH_SAYING = 0.005


def winner(tuning: Tuning) -> PlannedRun | None:
    """The best plan, without options that the compiler did not take; None where nothing fits."""
    if tuning.best is None:
        return None
    planned, refused = tuning.best.planned, tuning.best.answer.refused
    if not refused:
        return planned
    names = {each.partition("=")[0] for each in refused}
    left = {name: value for name, value in planned.compiler_options.items() if name not in names}
    return with_options(planned, left)


def winning_document(tuning: Tuning) -> dict[str, Any] | None:
    """The best plan as a plan.json, with what the compiler made of it; None where nothing fits."""
    planned = winner(tuning)
    if planned is None:
        return None
    assert tuning.best is not None
    assert tuning.best.answer.reading is not None
    first = tuning.first.answer.reading if tuning.first else None
    options = planned.compiler_options
    tuned = {
        **reading_json(tuning.best.answer.reading),
        "given_step_seconds": first.step_seconds if first else None,
        "compiler": dict(tuning.best.answer.versions or {}),
        "flags": [f"--{name}={value}" for name, value in options.items()],
    }
    return {**planned.document, "compiler": {"options": dict(options)}, "tuned": tuned}


def explanation(tuning: Tuning) -> Iterator[str]:
    """The winner in sentences."""
    best, first = tuning.best, tuning.first
    if not tuning.trials:
        yield "nothing was compiled"
        return
    if best is None:
        said = {each.answer.message for each in tuning.trials if each.answer.message}
        yield f"nothing that was tried fits{f': {next(iter(said))}' if len(said) == 1 else ''}"
        return
    assert best.seconds is not None
    if best is first:
        tried = len(tuning.trials) - 1
        stays = f"nothing of {tried} tried beats the plan: it stays"
        yield stays if tried else "nothing but the plan itself was compiled: it stays"
    elif first is None or first.seconds is None:
        yield f"the plan that was given does not pass; {named(best)} does"
    else:
        saved = 1 - best.seconds / first.seconds
        yield (
            f"the step goes from {format_seconds(first.seconds)} to {format_seconds(best.seconds)} "
            f"({saved:.1%} less) with {named(best)}"
        )
        assert first.answer.reading is not None
        assert best.answer.reading is not None
        yield from _why(first.answer.reading, best.answer.reading)
    yield from _other_layouts(tuning)


def named(trial: Trial) -> str:
    """A trial by its layout and its changes."""
    layout = layout_name(trial.planned.layout, trial.planned.remat)
    return f"{layout}, and {', '.join(map(str, trial.changes))}" if trial.changes else layout


def _why(before: Reading, after: Reading) -> Iterator[str]:
    parts = {
        "exposed communication": (before.exposed_seconds, after.exposed_seconds),
        "the compiler's cycles": (before.cycles_seconds, after.cycles_seconds),
        "attention kernels": (before.kernel_seconds, after.kernel_seconds),
    }
    told = [
        f"{name} {format_seconds(old)} to {format_seconds(new)}"
        for name, (old, new) in sorted(parts.items(), key=lambda each: each[1][1] - each[1][0])
        if abs(new - old) > WORTH_SAYING * before.step_seconds
    ]
    if told:
        yield "what changed: " + ", ".join(told)
    yield (
        f"memory of one device {format_bytes(before.memory_bytes)} to "
        f"{format_bytes(after.memory_bytes)} of {format_bytes(after.usable_bytes)}"
    )


def _other_layouts(tuning: Tuning) -> Iterator[str]:
    """Where the planner's order was not the compiler's."""
    layouts = [
        each
        for each in tuning.trials
        if each.rung in {"plan", "layout"} and each.seconds is not None
    ]
    if len(layouts) < 2:
        return
    foremost = min(layouts, key=lambda each: each.planned.step_seconds)
    quickest = min(layouts, key=lambda each: each.seconds or 0.0)
    if foremost is not quickest:
        assert foremost.seconds is not None
        assert quickest.seconds is not None
        yield (
            f"of {len(layouts)} layouts the planner puts {foremost.what} first, the compiler "
            f"{quickest.what}: {format_seconds(foremost.seconds)} against "
            f"{format_seconds(quickest.seconds)}"
        )


def findings(tuning: Tuning) -> Iterator[str]:
    """What the compiler did not take, died of or could not keep, one line each."""
    refused: dict[str, None] = {}
    for trial in tuning.trials:
        refused |= dict.fromkeys(trial.answer.refused)
    if refused:
        yield f"options that this compiler does not take: {', '.join(refused)}"
    deaths: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.answer.status == "died":
            deaths.setdefault(trial.answer.message, []).append(trial.what)
    for message, (first, *others) in deaths.items():
        yield f"{first}{f' and {len(others)} more' if others else ''}: {message}"
    yield from dict.fromkeys(each.answer.note for each in tuning.trials if each.answer.note)


def verdict(trial: Trial, tuning: Tuning) -> str:
    """What became of a trial, in a few words."""
    answer = trial.answer
    if trial is tuning.best:
        return "best"
    if _is_refused(trial):
        return "not taken"
    if not answer.fits:
        said = {"died": "died", "refused": "refused", "bad_input": "no such step"}
        return said.get(answer.status, "does not fit")
    if trial.gain is None or trial.gains:
        return "fits" if trial.gain is None else "gains"
    return "the same" if abs(trial.gain) <= LEAST_GAIN else "slower"


def _is_refused(trial: Trial) -> bool:
    """Whether what it was to try is an option that the compiler did not take."""
    refused = set(trial.answer.refused)
    flags = {str(each) for each in trial.changes if isinstance(each, Flag)}
    return bool(flags & refused)


def to_json(tuning: Tuning, *, budget_seconds: float, spent_seconds: float) -> dict[str, Any]:
    """The answer of `muster tune --json`."""
    return {
        "muster": 1,
        "fits": tuning.best is not None,
        "improved": tuning.best is not None and tuning.best is not tuning.first,
        "interrupted": tuning.interrupted,
        "budget_seconds": budget_seconds,
        "spent_seconds": spent_seconds,
        "trials": [_trial_json(each, tuning) for each in tuning.trials],
        "left_out": tuning.left_out,
        "skipped": tuning.skipped,
        "explanation": list(explanation(tuning)),
        "findings": list(findings(tuning)),
        "how_far_off": how_far_off(),
        "plan": winning_document(tuning),
    }


def _trial_json(trial: Trial, tuning: Tuning) -> Mapping[str, Any]:
    answer = trial.answer
    return {
        "rung": trial.rung,
        "what": trial.what,
        "changes": [str(each) for each in trial.changes],
        "layout": trial.planned.document["layout"],
        "remat": trial.planned.remat.value,
        "predicted_step_seconds": trial.planned.step_seconds,
        "status": answer.status,
        "message": answer.message,
        "verdict": verdict(trial, tuning),
        "gain": trial.gain,
        "reading": reading_json(answer.reading) if answer.reading else None,
        "needed_bytes": answer.needed_bytes,
        "refused": list(answer.refused),
        "kept": answer.kept,
        "compile_seconds": answer.seconds,
    }
