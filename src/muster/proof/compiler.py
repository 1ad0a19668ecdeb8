"""Ask the TPU compiler for a plan's step, in a process of its own, and keep what it says.

The compiler ends its process on some questions (an abort, an arithmetic fault), so a child process
asks. A compilation is kept by what it depends on: the plan's choices, muster's code, the compiler's
version and options; the second time it costs nothing.
"""

import atexit
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun
from muster.proof import kept
from muster.proof.child import FROM_OUTSIDE, Progress, run_child
from muster.proof.sound import Status, is_sound

PACKAGES = ("jax", "jaxlib", "libtpu")
# What a plan predicts does not change the program that it is compiled to.
PARTS_COMPILED = ("muster", "model", "cluster", "workload", "layout", "step")
# Nor does the code that predicts it: what a plan chose is in the plan.
CODE_APART = ("cli", "report", "validation", "proof", "launch", "planner", "roofline", "tune")

# A program is written twice before it stands in its place: the largest seen has 13 MB.
ROOM_BYTES = 128 * 2**20


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
        options: compiler options, by name; None for the plan's.
        layers: compile a model of this many of its layers instead; None for all.
        folder: where compilations are kept; None for the user's cache folder.
        timeout_seconds: after which the child process is ended; None for never.
        progress: told the stage and the seconds since the beginning, twice a second.

    Raises:
        BadInput: the plan is not for TPUs, or the compiler is not installed.
    """
    _check(planned)
    request = _request(planned, options, layers)
    home = folder or kept.default_folder()
    place = kept.entry(home, content_key(request))
    found = _read(place, was_kept=True)
    if found is not None:
        kept.mark_used(place)
        return found
    usable, note = _usable(place.parent)
    place = usable / place.name
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=kept.UNFINISHED) as name:
        work = Path(name)
        result = run_child(request, work, timeout_seconds, progress)
        result |= {"versions": versions(), "options": request["options"]}
        if result["status"] == "died":  # it may have been this machine's fault: never kept
            return replace(_compilation(result, work, was_kept=False), note=note)
        kept.written(result, work)
        if _read(place, was_kept=True) is None:  # nothing, or what cannot be used
            shutil.rmtree(place, ignore_errors=True)
        try:
            kept.keep(work, place)
        except OSError as error:
            note = _not_kept(home, error)
            place = _for_this_process() / "program"
            shutil.copytree(work, place)
    if not note:
        kept.make_room(home, spare=place)
    done = _read(place, was_kept=False)
    if done is None:  # another hand removed it, or the child wrote what no compiler says
        said = f"what the compiler wrote cannot be read back from {place}"
        return Compilation(status="died", message=said, note=note)
    return replace(done, note=note)


def _request(
    planned: PlannedRun, options: Mapping[str, str] | None, layers: int | None
) -> dict[str, Any]:
    return {
        "plan": {
            part: planned.document[part]
            for part in (*PARTS_COMPILED, "estimate")
            if part in planned.document  # a step of nothing but defaults is not written
        },
        "options": dict(planned.compiler_options if options is None else options),
        "layers": layers,
    }


def compile_with_known_options(
    planned: PlannedRun,
    options: Mapping[str, str],
    *,
    folder: Path | None = None,
    timeout_seconds: float | None = None,
    progress: Progress | None = None,
) -> Compilation:
    """Compile with the plan's options and some more, but for those that the compiler refuses.

    `refused` names them.

    Raises:
        BadInput: as `compile_plan`.
    """

    def compile_one(left: Mapping[str, str]) -> Compilation:
        return compile_plan(
            planned,
            options=left,
            folder=folder,
            timeout_seconds=timeout_seconds,
            progress=progress,
        )

    done = _without_refused({**planned.compiler_options, **options}, compile_one)
    assert done is not None
    return done


def kept_with_known_options(
    planned: PlannedRun, *, folder: Path | None = None
) -> Compilation | None:
    """What `compile_with_known_options` would find kept, and None where it would have to compile.

    Raises:
        BadInput: as `compile_plan`.
    """
    _check(planned)
    home = folder or kept.default_folder()

    def find(left: Mapping[str, str]) -> Compilation | None:
        place = kept.entry(home, content_key(_request(planned, left, None)))
        found = _read(place, was_kept=True)
        if found is not None:
            kept.mark_used(place)
        return found

    return _without_refused(planned.compiler_options, find)


def _without_refused[Found: Compilation | None](
    options: Mapping[str, str], ask: Callable[[Mapping[str, str]], Found]
) -> Found:
    """Ask again and again without the option that was refused, until none is."""
    left, refused = dict(options), list[str]()
    while True:
        done = ask(left)
        if done is None:
            return done
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
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
    plan = {part: request["plan"][part] for part in PARTS_COMPILED if part in request["plan"]}
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


def _read(place: Path, *, was_kept: bool) -> Compilation | None:
    result = kept.read_result(place)
    try:
        if result is None or not is_sound(result):
            return None
        return _compilation(result, place, was_kept=was_kept)
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
