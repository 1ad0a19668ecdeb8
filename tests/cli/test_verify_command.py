"""`muster verify` with a stand-in for the compiler's process; no TPU compiler is needed."""

import json
import os
import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from muster.cli.inspect import inspect
from muster.cli.verify import verify
from muster.errors import BadInput
from muster.planner.plan_file import read_plan
from tests.cli.desk import GB, NAME, Desk, Done
from tests.proof.fixtures import text_of


class VerifyingDesk(Desk):
    """With `muster verify`."""

    def verify(self, *arguments: str) -> Done:
        return self.run(verify, *arguments)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VerifyingDesk:
    return VerifyingDesk.made(monkeypatch, tmp_path)


def test_a_plan_that_passes(desk: VerifyingDesk) -> None:
    desk.answer(desk.compiled())
    done = desk.verify()
    assert (done.status, done.error) == (0, None)
    assert "passes: the TPU compiler counts 2 GB of 103 GB" in done.out.replace("2.00", "2")
    assert all(part in done.out for part in ("Memory", "Traffic", "Collectives", "Findings"))
    assert max(map(len, done.out.splitlines())) <= 100
    assert done.err.splitlines() == [done.err.strip()]  # one line where there is no terminal
    assert done.err.endswith("...\n")
    again = desk.verify()
    assert again.err == ""  # kept: nothing to wait for
    assert "found compiled" in again.out
    assert desk.runs == 1


def test_the_answer_as_json(desk: VerifyingDesk) -> None:
    desk.answer(desk.compiled())
    done = desk.verify("--json")
    assert done.err == ""
    document = json.loads(done.out)
    assert document["passes"] is True
    assert {"axes", "ratio", "expected_bytes_per_chip"} <= set(document["traffic"][0])
    assert [term["name"] for term in document["memory_per_chip"]["terms"]][:3] == [
        "parameters",
        "moments",
        "batch",
    ]
    assert document["memory_per_chip"]["why"]
    assert document["others"] == []
    assert {"id", "cost_seconds", "what", "change"} == set(document["findings"][0])


def test_a_compiler_that_dies_of_a_layout_is_asked_for_the_next(desk: VerifyingDesk) -> None:
    # Only the second question and those after it have an answer.
    desk.answer(f'[ "$(wc -l < {desk.folder}/runs)" -gt 1 ] || kill -FPE $$\n' + desk.compiled())
    done = desk.verify()
    assert done.status == 1
    assert "does not compile: the compiler process ended with SIGFPE" in done.out
    assert "The next best layouts" in done.out
    assert "passes: " in done.out
    assert desk.runs == 2


def test_a_compiler_that_was_stopped_has_given_no_answer(desk: VerifyingDesk) -> None:
    desk.answer("kill -KILL $$")
    done = desk.verify()
    assert done.status == 1
    assert "no answer: the compiler process ended with SIGKILL: killed from outside" in done.out
    assert "does not compile" not in done.out


def test_out_writes_the_plan_that_passes(desk: VerifyingDesk) -> None:
    desk.answer(f'[ "$(wc -l < {desk.folder}/runs)" -gt 1 ] || kill -FPE $$\n' + desk.compiled())
    out = desk.folder / "passes.json"
    assert desk.verify("--out", str(out)).status == 1
    assert read_plan(out).layout != read_plan(desk.plan).layout
    assert read_plan(out).workload == read_plan(desk.plan).workload


def test_out_of_a_plan_that_passes_is_the_plan(desk: VerifyingDesk) -> None:
    desk.answer(desk.compiled())
    out = desk.folder / "passes.json"
    assert desk.verify("--out", str(out)).status == 0
    assert json.loads(out.read_text()) == json.loads(desk.plan.read_text())


def test_where_nothing_passes_nothing_is_written(desk: VerifyingDesk) -> None:
    desk.answer("kill -FPE $$")
    out = desk.folder / "passes.json"
    done = desk.verify("--out", str(out), "--others", "2")
    assert done.status == 1
    assert not out.exists()
    assert "nothing passes" in done.err
    assert desk.runs == 3


def test_a_plan_that_does_not_fit_is_answered_alone_unless_more_is_asked(
    desk: VerifyingDesk,
) -> None:
    desk.answer(desk.compiled(temporaries=200 * GB))
    done = desk.verify()
    assert done.status == 1
    assert "does not fit: the TPU compiler counts 201 GB of 103 GB" in done.out
    assert desk.runs == 1
    assert json.loads(desk.verify("--json", "--others", "1").out)["others"][0]["passes"] is False
    assert desk.runs == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("kill -KILL $$", "killed from outside, as by a machine out of memory"),
        ("echo 'MemoryError: no'; exit 1", "MemoryError: no"),
    ],
)
def test_a_child_that_others_killed_is_one_line(
    desk: VerifyingDesk, script: str, says: str
) -> None:
    desk.answer(script)
    done = desk.verify()
    assert done.status == 1
    assert says in " ".join(done.out.split())
    assert desk.runs == 1  # not the layout's fault: no other is tried


def test_too_long(desk: VerifyingDesk) -> None:
    desk.answer("sleep 60")
    done = desk.verify("--timeout", "0.5")
    assert done.status == 1
    assert "not done after 0.5 s" in done.out


def test_an_option_that_the_compiler_refuses_is_a_finding(desk: VerifyingDesk) -> None:
    refused = desk.folder / "refused.json"
    refused.write_text(json.dumps({"status": "refused", "message": "No such option: 'xla_bad'"}))
    desk.answer(
        f'if grep -q xla_bad "$3"; then cp {refused} "$4/result.json"; exit; fi\n' + desk.compiled()
    )
    done = desk.verify("--flag", "xla_bad=1", "--flag", "xla_good=1", "--json")
    assert done.status == 0
    document = json.loads(done.out)
    flags = document["compiler"]["flags"]
    assert flags == {**document["plan"]["compiler"]["options"], "xla_good": "1"}
    assert document["compiler"]["refused"] == ["xla_bad=1"]
    assert "unsupported-flag" in [each["id"] for each in document["findings"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--timeout", "soon"), "--timeout 'soon' is not a number of seconds"),
        (("--timeout", "0"), "not a number of seconds"),
        (("--others", "many"), "--others 'many' is not a number from 0 to 20"),
        (("--others", "21"), "from 0 to 20"),
        (("--flag", "x"), "write it like"),
        (("--out", "no/such/folder/x.json"), "--out"),
    ],
)
def test_bad_options(desk: VerifyingDesk, arguments: tuple[str, ...], says: str) -> None:
    done = desk.verify(*arguments)
    assert isinstance(done.error, BadInput)
    assert says in str(done.error)


@pytest.mark.parametrize("option", ["--hlo", "--trace", "--out"])
def test_the_plan_is_never_written_over(desk: VerifyingDesk, option: str) -> None:
    before = desk.plan.read_bytes()
    link = desk.folder / "link.json"
    link.symlink_to(desk.plan)
    for file in (desk.plan, link):
        done = desk.verify(option, str(file))
        assert isinstance(done.error, BadInput)
        assert f"{option}: {file} is the plan itself" in str(done.error)
    assert desk.plan.read_bytes() == before
    assert not (desk.folder / "runs").exists()


def test_two_options_do_not_name_one_file(desk: VerifyingDesk) -> None:
    done = desk.verify("--hlo", str(desk.folder / "x"), "--out", f"{desk.folder}/./x")
    assert isinstance(done.error, BadInput)
    assert str(done.error) == "--hlo and --out name the same file; give each its own"


def test_files_are_written_whole_after_the_verdict(desk: VerifyingDesk) -> None:
    desk.answer(desk.compiled())
    mine, real, link = (desk.folder / name for name in ("step.json.part", "real", "link.hlo"))
    mine.write_text("mine")
    link.symlink_to(real)
    trace = desk.folder / "step.json"
    assert desk.verify("--trace", str(trace), "--hlo", str(link)).status == 0
    assert mine.read_text() == "mine"
    assert link.is_symlink()
    assert real.read_text("utf-8") == text_of(NAME)
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_file_that_cannot_be_written_after_all_costs_no_verdict(desk: VerifyingDesk) -> None:
    late = desk.folder / "late"
    late.mkdir()
    desk.answer(f"rmdir {late}\n" + desk.compiled())
    out = desk.folder / "passes.json"
    done = desk.verify("--hlo", str(late / "x.hlo"), "--out", str(out))
    assert "passes: the TPU compiler counts" in done.out
    assert isinstance(done.error, BadInput)
    assert "--hlo: cannot write" in str(done.error)
    assert "x.hlo" in str(done.error)
    assert out.exists()


def test_inspect_does_not_write_over_its_program(tmp_path: Path) -> None:
    program = tmp_path / "x.hlo.txt"
    program.write_text("HloModule x")
    arguments = [str(program), "--on", "v5p:2x2x4", "--trace", str(program)]
    done = CliRunner().invoke(inspect, arguments, standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    assert "is the program itself" in str(done.exception)
    assert program.read_text() == "HloModule x"


def test_a_cache_that_cannot_be_written_is_a_note(
    desk: VerifyingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk.plan))
    desk.answer(desk.compiled())
    done = desk.verify()
    assert done.status == 0
    assert "the result is not kept for the next time" in " ".join(done.out.split())


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_a_signal_ends_the_compiler_too(desk: VerifyingDesk, name: str) -> None:
    handler = signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_DFL)  # none that is ignored
    try:
        desk.answer(f"echo $$ > {desk.folder}/pid; sleep 1; kill -{name} $PPID; sleep 600")
        done = desk.verify()
    finally:
        signal.signal(signal.Signals[f"SIG{name}"], handler)
    assert isinstance(done.error, click.Abort)
    with pytest.raises(ProcessLookupError):
        os.kill(int((desk.folder / "pid").read_text()), 0)
    assert not list((desk.folder / "cache").rglob("new-*"))
