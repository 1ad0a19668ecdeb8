"""Ask the TPU compiler for a plan's step, in a process of its own, and keep what it says.

The compiler ends its process on some questions (an abort, an arithmetic fault), so a child process
asks. A compilation is kept by what it depends on: the plan's choices, muster's code, the compiler's
version and options; the second time it costs nothing.
"""

import atexit
import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun
from muster.proof import kept

PACKAGES = ("jax", "jaxlib", "libtpu")
# One process holds libtpu unless told otherwise; no metadata server is asked where there is none.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
# What a plan predicts does not change the program that it is compiled to.
PARTS_COMPILED = ("muster", "model", "cluster", "workload", "layout")
CODE_APART = ("cli", "report", "validation", "proof", "launch")
MOST_LAST_WORDS = 300
TOLD_EVERY_SECONDS = 0.5
STARTING = "starting the compiler"
# Signals that say nothing about the compiler: a machine out of memory, a user who ends it.
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")

type Status = Literal["compiled", "too_large", "refused", "died", "bad_input"]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The compiler's own count of one device's HBM, bytes.

    Attributes:
        arguments: state and batch.
        outputs: the new state; it takes over `aliased` bytes of the arguments.
        aliased: outputs that lie where arguments lay.
        temporaries: the most that lives in between.
        code: the program.
        peak: the most at any time, where the compiler says it.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    peak: int
    host_temporaries: int

    @property
    def total(self) -> int:
        """What has to fit: arguments, outputs that are not aliased, temporaries and code."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What came of a compilation.

    Attributes:
        status: `compiled`; `too_large`: it needs more memory than the chip has; `refused`: the
            compiler gave an error; `died`: its process ended; `bad_input`: there is no such step.
        message: what went wrong, one line; empty where nothing did.
        detail: all that the compiler said of it, such as the largest allocations.
        text: the scheduled program; None unless compiled.
        memory: None unless compiled.
        needed: bytes of `space` that it needs, where it is too large.
        usable: bytes of `space` that there are, where it is too large.
        space: the memory that does not hold it: "hbm", "vmem" or "smem".
        cost: the compiler's own counts, "flops" and "bytes accessed"; loop bodies count once.
        mesh: ways of every mesh axis, outermost first, over devices.
        coordinates: of each device in the mesh's order: x, y, z, core, slice.
        trace_seconds: to trace and lower the step.
        compile_seconds: to compile it.
        peak_rss_bytes: the most memory that the child process held.
        versions: of JAX and the compiler.
        options: compiler options that it was given.
        kept: whether it was found among results kept before.
        refused: options that the compiler did not take, as name=value; it went without them.
        ended_by: the signal that ended the child process, where one did.
        note: what the user should know of how it was kept; empty for nothing.
    """

    status: Status
    message: str = ""
    detail: str = ""
    text: Path | None = None
    memory: Memory | None = None
    needed: int = 0
    usable: int = 0
    space: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    coordinates: tuple[tuple[int, ...], ...] = ()
    trace_seconds: float = 0.0
    compile_seconds: float = 0.0
    peak_rss_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    kept: bool = False
    refused: tuple[str, ...] = ()
    ended_by: str = ""
    note: str = ""

    @property
    def compilers_fault(self) -> bool:
        """Whether the compiler ended its own process, which another layout may be spared."""
        return self.status == "died" and self.ended_by not in {"", *FROM_OUTSIDE}


type Progress = Callable[[str, float], None]


def compile_plan(
    planned: PlannedRun,
    *,
    options: Mapping[str, str] | None = None,
    layers: int | None = None,
    folder: Path | None = None,
    timeout_seconds: float | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Compile the training step of a plan for the plan's own topology.

    Args:
        planned: the plan.
        options: compiler options, by name.
        layers: compile a model of this many of its layers instead; None for all.
        folder: where compilations are kept; None for the user's cache folder.
        timeout_seconds: after which the child process is ended; None for never.
        progress: told the stage and the seconds since the beginning, twice a second.

    Raises:
        BadInput: the plan is not for TPUs, or the compiler is not installed.
    """
    _check(planned)
    request = {
        "plan": {part: planned.document[part] for part in (*PARTS_COMPILED, "estimate")},
        "options": dict(options or {}),
        "layers": layers,
    }
    home, note = _usable(folder or kept.default_folder())
    place = kept.entry(home, content_key(request))
    found = _read(place, was_kept=True)
    if found is not None:
        kept.mark_used(place)
        return found
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=kept.UNFINISHED) as name:
        work = Path(name)
        result = _run(request, work, timeout_seconds, progress)
        result |= {"versions": versions(), "options": request["options"]}
        if result["status"] == "died":  # it may have been this machine's fault: never kept
            return replace(_compilation(result, work, was_kept=False), note=note)
        kept.written(result, work)
        try:
            kept.keep(work, place)
        except OSError as error:
            note = _not_kept(home, error)
            place = _for_this_process() / "program"
            shutil.copytree(work, place)
    if not note:
        kept.make_room(home, spare=place)
    done = _read(place, was_kept=False)
    assert done is not None
    return replace(done, note=note)


def compile_with_known_options(
    planned: PlannedRun,
    options: Mapping[str, str],
    *,
    folder: Path | None = None,
    timeout_seconds: float | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Compile with those of some options that the compiler takes; `refused` says which it did not.

    Raises:
        BadInput: as `compile_plan`.
    """
    left, refused = dict(options), list[str]()
    while True:
        done = compile_plan(
            planned,
            options=left,
            folder=folder,
            timeout_seconds=timeout_seconds,
            progress=progress,
        )
        named = option_refused(done, left)
        if named is None:
            return replace(done, refused=tuple(refused))
        refused.append(f"{named}={left.pop(named)}")


def option_refused(done: Compilation, options: Mapping[str, str]) -> str | None:
    """The option for whose sake the compiler refused; None where it had another reason.

    >>> said = "INVALID_ARGUMENT: No such compile option: 'xla_x'"
    >>> option_refused(Compilation(status="refused", message=said), {"xla_x": "1", "xla": "2"})
    'xla_x'
    """
    if done.status != "refused":
        return None
    said = re.findall(r"\w+", done.message)
    return next((name for name in options if name in said), None)


def _usable(folder: Path) -> tuple[Path, str]:
    """A folder to keep results in, and what to say where it is not the one that was meant."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=kept.UNFINISHED):
            return folder, ""
    except OSError as error:
        return _for_this_process(), _not_kept(folder, error)


def _not_kept(folder: Path, error: OSError) -> str:
    why = error.strerror or type(error).__name__
    return f"the result is not kept for the next time: {folder} cannot be written ({why})"


def _for_this_process() -> Path:
    """A folder that is gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="muster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def content_key(request: Mapping[str, Any]) -> str:
    """The SHA-256 of everything that a compilation depends on."""
    plan = {part: request["plan"][part] for part in PARTS_COMPILED}
    content = {**request, "plan": plan, "versions": versions(), "code": code_hash()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def versions() -> Mapping[str, str]:
    """Versions of JAX and of the TPU compiler; those that are not installed are left out."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def code_hash() -> str:
    """The SHA-256 of the code and data of muster that a step is built from."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256((root / "proof" / "compile.py").read_bytes())
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.suffix in {".py", ".toml"} and inside.parts[0] not in CODE_APART:
            digest.update(inside.as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _check(planned: PlannedRun) -> None:
    chip = planned.cluster.chip
    if chip.compiler is None:
        raise BadInput(
            f"the plan is for {planned.cluster.name}, and the compiler that needs no chips knows "
            "TPUs alone; `muster plan` is what checks a plan for other chips"
        )
    missing = [package for package in ("jax", "libtpu") if package not in versions()]
    if missing:
        raise BadInput(
            f"the TPU compiler is not installed ({' and '.join(missing)} missing); "
            "install muster[tpu]"
        )


def _run(
    request: Mapping[str, Any],
    work: Path,
    timeout_seconds: float | None,
    progress: Progress | None,
) -> dict[str, Any]:
    question = work / "request.json"
    question.write_text(json.dumps(request), "utf-8")
    begun = time.perf_counter()
    with (work / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "muster.proof.compile", str(question), str(work)],
            env=os.environ | ENVIRONMENT,
            stdout=log,
            stderr=log,
            start_new_session=True,  # so that a Ctrl-C reaches it through us, once
        )
        try:
            status = _wait(child, work, timeout_seconds, progress)
        except BaseException:
            _end(child)
            raise
    passed = time.perf_counter() - begun
    if status is None:
        _end(child)
        said = f"the compiler was not done after {timeout_seconds:g} s and was stopped"
        return {"status": "died", "message": said, "compile_seconds": passed}
    result = work / kept.RESULT
    if status == 0 and result.exists():
        found: dict[str, Any] = json.loads(result.read_text("utf-8"))
        return found
    return {
        "status": "died",
        "message": how_it_died(status, (work / "log.txt").read_text("utf-8", errors="replace")),
        "ended_by": signal_name(status),
        "compile_seconds": passed,
    }


def _wait(
    child: subprocess.Popen[bytes],
    work: Path,
    timeout_seconds: float | None,
    progress: Progress | None,
) -> int | None:
    """The child's exit status; None where it took longer than it may."""
    begun = time.perf_counter()
    while True:
        passed = time.perf_counter() - begun
        if progress is not None:
            progress(_stage(work), passed)
        left = math.inf if timeout_seconds is None else timeout_seconds - passed
        if left <= 0:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(left, TOLD_EVERY_SECONDS))


def _stage(work: Path) -> str:
    try:
        return (work / "stage").read_text("utf-8") or STARTING
    except OSError:
        return STARTING


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def signal_name(status: int) -> str:
    """The signal that ended a process, "" where none did.

    >>> signal_name(-8), signal_name(1)
    ('SIGFPE', '')
    """
    if status >= 0:
        return ""
    return signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"


def how_it_died(status: int, log: str) -> str:
    r"""One line on how a child process ended without a result.

    >>> how_it_died(-8, "")
    'the compiler process ended with SIGFPE, an arithmetic fault inside the TPU compiler'
    >>> how_it_died(1, "Traceback ...\nModuleNotFoundError: No module named 'optax'\n")
    "the compiler process failed: ModuleNotFoundError: No module named 'optax'"
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if status >= 0:
        return f"the compiler process failed: {lines[-1][:MOST_LAST_WORDS] if lines else status}"
    name = signal_name(status)
    why = {
        "SIGFPE": ", an arithmetic fault inside the TPU compiler",
        "SIGABRT": ": the TPU compiler gave up",
        "SIGSEGV": ", a memory fault inside the TPU compiler",
        "SIGKILL": ": killed from outside, as by a machine out of memory",
    }.get(name, "")
    fatal = [line for line in lines if line.startswith("F") and "]" in line] or [
        line for line in lines if "Check failed" in line
    ]
    said = f" ({fatal[0].split('] ', 1)[-1][:MOST_LAST_WORDS]})" if fatal else ""
    return f"the compiler process ended with {name}{why}{said}"


def _read(place: Path, *, was_kept: bool) -> Compilation | None:
    result = kept.read_result(place)
    try:
        return None if result is None else _compilation(result, place, was_kept=was_kept)
    except (KeyError, TypeError, ValueError):  # of another version, or damaged
        return None


def _compilation(result: Mapping[str, Any], folder: Path, *, was_kept: bool) -> Compilation:
    compiled = result["status"] == "compiled"
    given = {key: value for key, value in result.items() if key not in {"memory", "coordinates"}}
    return Compilation(
        **given,
        kept=was_kept,
        text=folder / kept.PROGRAM if compiled else None,
        memory=Memory(**result["memory"]) if compiled else None,
        coordinates=tuple(tuple(place) for place in result.get("coordinates", ())),
    )
