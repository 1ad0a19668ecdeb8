"""Asking for a compilation: what is kept, what is refused, and how a dead child is reported."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof import child as processes
from muster.proof import compiler
from muster.proof.child import how_it_died
from muster.proof.compiler import (
    Compilation,
    Memory,
    compile_plan,
    compile_with_known_options,
)
from tests.proof.make_programs import LLAMA, plan_of

VERSIONS = {"jax": "1", "jaxlib": "1", "libtpu": "1"}
COMPILED = {
    "status": "compiled",
    "memory": {
        "arguments": 100,
        "outputs": 90,
        "aliased": 80,
        "temporaries": 50,
        "code": 7,
        "peak": 160,
        "host_temporaries": 0,
    },
    "cost": {"flops": 1.0},
    "mesh": {"fsdp": 2},
    "coordinates": [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    "trace_seconds": 1.0,
    "compile_seconds": 2.0,
    "peak_rss_bytes": 3,
}


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> PlannedRun:
    monkeypatch.setattr(compiler, "versions", lambda: VERSIONS)
    return plan_of("llama-v5p-one-chip")


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """Put a shell script in the place of the child: $4 is the folder of its results."""
    path = folder / "child"
    path.write_text(f"#!/bin/sh\necho ran >> {folder}/runs\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(sys, "executable", str(path))
    return folder / "runs"


def result_of(folder: Path, result: dict[str, object]) -> str:
    written = folder / "written.json"
    written.write_text(json.dumps(result))
    return f'cp {written} "$4/result.json"; echo HloModule > "$4/program.hlo.txt"'


def test_a_compilation_is_kept_by_content(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    first = compile_plan(plan, folder=tmp_path / "kept")
    second = compile_plan(plan, folder=tmp_path / "kept")
    assert not first.kept
    assert second.kept
    assert runs.read_text() == "ran\n"
    assert second.text is not None
    assert second.text.read_text() == "HloModule\n"
    assert second.memory == Memory(**COMPILED["memory"])  # type: ignore[arg-type]
    assert second.memory.total == 100 + 90 - 80 + 50 + 7
    assert second.coordinates == ((0, 0, 0, 0, 0), (1, 0, 0, 0, 0))
    assert second.versions == VERSIONS
    compile_plan(plan, folder=tmp_path / "kept", options={"xla_x": "true"})
    compile_plan(plan, folder=tmp_path / "kept", layers=2)
    assert runs.read_text() == "ran\n" * 3
    assert not list((tmp_path / "kept").rglob("new-*"))


def test_the_key_follows_everything_that_matters(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(**changes: object) -> str:
        request = {"plan": dict(plan.document), "options": {}, "layers": None} | changes
        return compiler.content_key(request)

    assert key() == key()
    estimate = dict(plan.document) | {"estimate": {"step_seconds": 99.0}}
    assert key(plan=estimate) == key()
    layout = dict(plan.document) | {"layout": {"fsdp": 2}}
    others = [key(plan=layout), key(options={"a": "b"}), key(layers=1)]
    monkeypatch.setattr(compiler, "versions", lambda: VERSIONS | {"libtpu": "2"})
    others.append(key())
    assert len({*others, "x"}) == 5


def test_too_large_is_a_result_and_is_kept(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = {"status": "too_large", "message": "x", "space": "hbm", "needed": 9, "usable": 5}
    runs = child(monkeypatch, tmp_path, result_of(tmp_path, said))
    for kept in (False, True):
        found = compile_plan(plan, folder=tmp_path / "kept")
        assert found == Compilation(
            status="too_large",
            message="x",
            space="hbm",
            needed=9,
            usable=5,
            versions=VERSIONS,
            options=plan.compiler_options,
            kept=kept,
        )
    assert runs.read_text() == "ran\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -FPE $$", "SIGFPE, an arithmetic fault inside the TPU compiler"),
        ("echo 'F1 12:00 a.cc:3] Check failed: x > 0'; kill -ABRT $$", "Check failed: x > 0"),
        ("kill -KILL $$", "killed from outside, as by a machine out of memory"),
        ("echo Traceback; echo 'ImportError: no'; exit 1", "failed: ImportError: no"),
        ("exit 0", "the compiler process failed: 0"),
    ],
)
def test_a_dead_child_is_one_line_and_is_not_kept(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    runs = child(monkeypatch, tmp_path, script)
    for _ in range(2):
        found = compile_plan(plan, folder=tmp_path / "kept")
        assert found.status == "died"
        assert said in found.message
        assert "\n" not in found.message
        assert found.text is None
    assert runs.read_text() == "ran\n" * 2


def test_a_folder_within_it_that_cannot_be_written(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    kept = tmp_path / "kept"
    kept.mkdir()
    for first in range(256):  # whatever the key begins with
        (kept / f"{first:02x}").write_text("")
    found = compile_plan(plan, folder=kept)
    assert found.status == "compiled"
    assert "not kept for the next time" in found.note


def test_a_child_that_takes_too_long_is_ended(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60")
    found = compile_plan(plan, folder=tmp_path / "kept", timeout_seconds=0.5)
    assert found.status == "died"
    assert found.message == "the compiler was not done after 0.5 s and was stopped"
    assert not found.compilers_fault
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_interrupt_ends_the_child_and_leaves_nothing(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, "sleep 60")

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    waits = iter([interrupted])
    real = subprocess.Popen.wait

    def wait(self: "subprocess.Popen[str]", timeout: float | None = None) -> int:
        return next(waits, real)(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        compile_plan(plan, folder=tmp_path / "kept")
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]


def test_gpus_and_missing_packages_are_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("llama-v5p-one-chip")
    monkeypatch.setattr(compiler, "versions", lambda: {"jax": "1"})
    with pytest.raises(BadInput, match=r"libtpu missing.*muster\[tpu\]"):
        compile_plan(plan)
    document = dict(plan.document) | {"cluster": {"slice": "h100:8"}}
    with pytest.raises(BadInput, match=r"h100:8.*TPUs alone"):
        compile_plan(planned_run(document, where="x"))


def test_an_odd_status() -> None:
    assert how_it_died(-250, "") == "the compiler process ended with signal 250"
    assert how_it_died(3, "") == "the compiler process failed: 3"


def test_fixtures_are_of_the_model_that_they_say() -> None:
    assert plan_of("llama-v5p-fsdp64").architecture.d_model == LLAMA["hidden_size"]


def test_a_folder_that_cannot_be_written_is_said_and_done_without(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    blocked = tmp_path / "file"
    blocked.write_text("")
    for _ in range(2):
        found = compile_plan(plan, folder=blocked / "kept")
        assert found.status == "compiled"
        assert found.text is not None
        assert found.text.read_text() == "HloModule\n"
        assert "not kept for the next time" in found.note
        assert str(blocked / "kept") in found.note
    assert runs.read_text() == "ran\n" * 2


def test_a_disk_that_is_nearly_full_is_said_and_done_without(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before the compiler runs for minutes and finds no room for what it made."""
    child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    monkeypatch.setattr(compiler, "ROOM_BYTES", 2**70)
    found = compile_plan(plan, folder=tmp_path / "kept")
    assert found.status == "compiled"
    assert "not kept for the next time" in found.note
    assert "No space left on device" in found.note


@pytest.mark.parametrize("damage", ["result.json", "program.hlo.txt"])
def test_a_damaged_entry_is_made_again(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    runs = child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    first = compile_plan(plan, folder=tmp_path / "kept")
    assert first.text is not None
    (first.text.parent / damage).write_text("")
    again = compile_plan(plan, folder=tmp_path / "kept")
    assert not again.kept
    assert again.text == first.text
    assert again.text.read_text() == "HloModule\n"
    assert runs.read_text() == "ran\n" * 2
    assert compile_plan(plan, folder=tmp_path / "kept").kept


def test_options_that_the_compiler_refuses_are_left_out(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def says(message: str) -> str:
        return json.dumps({"status": "refused", "message": message})

    (tmp_path / "no").write_text(says("INVALID_ARGUMENT: No such compile option: 'xla_bad'"))
    (tmp_path / "odd").write_text(says("Failed to parse 'lots' into flag xla_odd: x"))
    child(
        monkeypatch,
        tmp_path,
        f'if grep -q xla_bad "$3"; then cp {tmp_path}/no "$4/result.json"; exit; fi\n'
        f'if grep -q xla_odd "$3"; then cp {tmp_path}/odd "$4/result.json"; exit; fi\n'
        + result_of(tmp_path, COMPILED),
    )
    options = {"xla_good": "1", "xla_bad": "2", "xla_odd": "lots"}
    done = compile_with_known_options(plan, options, folder=tmp_path / "kept")
    assert done.status == "compiled"
    assert done.refused == ("xla_bad=2", "xla_odd=lots")
    assert done.options == {**plan.compiler_options, "xla_good": "1"}


def test_a_refusal_for_another_reason_is_the_answer(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child(monkeypatch, tmp_path, result_of(tmp_path, {"status": "refused", "message": "no: xla"}))
    done = compile_with_known_options(plan, {"xla_good": "1"}, folder=tmp_path / "kept")
    assert (done.status, done.refused) == ("refused", ())


def test_the_stages_are_told(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    wait = f"for _ in $(seq 500); do [ -e {heard} ] && break; sleep 0.02; done; "
    script = 'echo -n compiling > "$4/stage"; ' + wait + result_of(tmp_path, COMPILED)
    child(monkeypatch, tmp_path, script)
    monkeypatch.setattr(processes, "TOLD_EVERY_SECONDS", 0.02)
    told: list[tuple[str, float]] = []

    def progress(stage: str, passed: float) -> None:
        told.append((stage, passed))
        if stage == "compiling":
            heard.touch()

    done = compile_plan(plan, folder=tmp_path / "kept", progress=progress)
    assert told[-1][0] == "compiling"
    assert {stage for stage, _ in told} <= {"starting the compiler", "compiling"}
    assert [passed for _, passed in told] == sorted(passed for _, passed in told)
    assert done.text is not None
    assert {path.name for path in done.text.parent.iterdir()} == {
        "log.txt",
        "program.hlo.txt",
        "result.json",
    }


@pytest.mark.parametrize(
    ("script", "fault"),
    [("kill -FPE $$", True), ("kill -ABRT $$", True), ("kill -KILL $$", False), ("exit 1", False)],
)
def test_whose_fault_it_was(
    plan: PlannedRun,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str,
    fault: bool,
) -> None:
    child(monkeypatch, tmp_path, script)
    assert compile_plan(plan, folder=tmp_path / "kept").compilers_fault is fault


@pytest.mark.parametrize(
    "change",
    [
        {"status": "odd"},
        {"status": ["compiled"]},
        {"message": 3},
        {"compile_seconds": "2"},
        {"peak_rss_bytes": None},
        {"cost": {"flops": "many"}},
        {"mesh": {"fsdp": 1.5}},
        {"mesh": [2]},
        {"memory": {**COMPILED["memory"], "code": "7"}},  # type: ignore[dict-item]
        {"memory": None},
        {"coordinates": [["a"]]},
        {"coordinates": 3},
        {"mesh": {"data": 0}, "coordinates": [[0, 0, 0, 0, 0]]},
        {"mesh": {"data": 2}, "coordinates": [[0], [1]]},
        {"mesh": {"data": 4}},
        {"options": {"xla": 1}},
    ],
    ids=str,
)
def test_an_entry_with_values_of_other_kinds_is_made_again(
    plan: PlannedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, object]
) -> None:
    child(monkeypatch, tmp_path, result_of(tmp_path, COMPILED))
    first = compile_plan(plan, folder=tmp_path / "kept")
    assert first.text is not None
    written = first.text.parent / "result.json"
    written.write_text(json.dumps(json.loads(written.read_text()) | change))
    assert not compile_plan(plan, folder=tmp_path / "kept").kept
    assert compile_plan(plan, folder=tmp_path / "kept").kept
