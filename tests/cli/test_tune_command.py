"""`muster tune` with a stand-in for the compiler's process; no TPU compiler is needed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.tune import read_budget, read_jobs, tune
from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.planner.plan_file import read_plan
from muster.roofline.workload import Workload
from muster.tune import search
from muster.tune.choices import knobs
from muster.tune.flags import flags_for, options
from tests.cli.desk import GB, Desk, Done
from tests.proof.make_programs import LLAMA


class TuningDesk(Desk):
    """With `muster tune`."""

    def tune(self, *arguments: str) -> Done:
        return self.run(tune, *arguments)

    def refusing(self, option: str) -> str:
        """As compiled, but for an option that this compiler does not know."""
        said = {"status": "refused", "message": f"No such compile option: '{option}'"}
        written = self.folder / "refused.json"
        written.write_text(json.dumps(said))
        refuse = f'cp {written} "$4/result.json"'
        return f'if grep -q {option} "$3"; then {refuse}; else {self.compiled()}; fi'


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TuningDesk:
    # A few of each kind: every trial is a program to read.
    monkeypatch.setattr(search, "flags_for", lambda plan: islice(flags_for(plan), 2))
    monkeypatch.setattr(search, "knobs", lambda plan: islice(knobs(plan), 2))
    return TuningDesk.made(monkeypatch, tmp_path)


def test_nothing_beats_the_plan_where_all_programs_are_the_same(desk: TuningDesk) -> None:
    desk.answer(desk.compiled())
    out = desk.folder / "tuned.json"
    done = desk.tune("--out", str(out), "--jobs", "1")
    assert (done.status, done.error) == (0, None)
    assert "nothing beats the plan" in done.out
    assert "no chip has run these steps" in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    assert done.err.startswith("fsdp 16, remat none: ")  # a line a trial where no terminal is
    document = json.loads(out.read_text())
    given = json.loads(desk.plan.read_text())
    assert document.pop("tuned")["compiler"]["libtpu"] == "1"
    assert document == given
    assert read_plan(out).layout == read_plan(desk.plan).layout
    runs = desk.runs
    again = desk.tune()
    assert desk.runs == runs  # all of it was kept
    assert again.status == 0


def test_json_has_the_whole_answer_and_nothing_else(desk: TuningDesk) -> None:
    desk.answer(desk.refusing("xla_tpu_scoped_vmem_limit_kib"))
    done = desk.tune("--json", "--jobs", "1")
    assert done.err == ""
    document = json.loads(done.out)
    assert (document["fits"], document["improved"], document["interrupted"]) == (True, False, False)
    assert document["trials"][0]["rung"] == "plan"
    assert document["plan"]["tuned"]["step_seconds"] > 0
    verdicts = {each["what"]: each["verdict"] for each in document["trials"]}
    assert verdicts["xla_tpu_scoped_vmem_limit_kib=98304"] == "not taken"
    assert any("does not take" in each for each in document["findings"])


def test_nothing_fits(desk: TuningDesk) -> None:
    desk.answer(desk.compiled(temporaries=200 * GB))
    out = desk.folder / "tuned.json"
    done = desk.tune("--out", str(out))
    assert done.status == 1
    assert "nothing fits" in done.out
    assert "does not fit" in done.out
    assert not out.exists()
    assert "nothing fits, so" in done.err


def test_a_compiler_that_dies_of_everything(desk: TuningDesk) -> None:
    desk.answer("kill -FPE $$")
    done = desk.tune("--jobs", "1")
    assert done.status == 1
    assert "SIGFPE" in done.out


@pytest.mark.parametrize("budget", ["", "20", "0s", "-5m", "1d", "m", "1e9s", "٣m", "721h"])
def test_budgets_that_are_none(budget: str) -> None:
    with pytest.raises(BadInput, match="--budget"):
        read_budget(budget)


@pytest.mark.parametrize("jobs", ["0", "-1", "1.5", "100000", "two"])
def test_jobs_that_are_none(jobs: str) -> None:
    with pytest.raises(BadInput, match="--jobs"):
        read_jobs(jobs)


def test_plans_for_other_chips_are_refused_as_verify_refuses_them(desk: TuningDesk) -> None:
    plan = make_plan(
        architecture_from_config(LLAMA, name="small"),
        parse_cluster("h100:16"),
        Workload(sequence_length=1024, batch_sequences=64, param_dtype="bf16"),
    )
    desk.plan.write_text(json.dumps(plan.to_json()))
    done = desk.tune()
    assert isinstance(done.error, BadInput)
    assert "knows TPUs alone" in str(done.error)
    assert done.out == ""


def test_a_program_that_cannot_be_read_loses_alone(desk: TuningDesk) -> None:
    # As of a flag that makes the compiler write what nobody has seen before.
    broken = f'{desk.compiled()}; echo no program > "$4/program.hlo.txt"'
    first = f'[ "$(wc -l < {desk.folder}/runs)" -le 1 ]'
    desk.answer(f"if {first}; then {desk.compiled()}; else {broken}; fi")
    out = desk.folder / "tuned.json"
    done = desk.tune("--jobs", "1", "--out", str(out))
    assert (done.status, done.error) == (0, None)
    assert re.search(r"and \d+ more: its program cannot be read: not an HLO program", words(done))
    assert json.loads(out.read_text())["tuned"]["fits"]


def test_a_fault_of_this_machine_loses_one_trial_alone(desk: TuningDesk) -> None:
    first = f'[ "$(wc -l < {desk.folder}/runs)" -le 1 ]'
    desk.answer(f'if {first}; then {desk.compiled()}; else rm -r "$4"; fi')
    out = desk.folder / "tuned.json"
    done = desk.tune("--jobs", "1", "--out", str(out))
    assert (done.status, done.error) == (0, None)
    assert "more: the step cannot be compiled here: No such file or directory" in words(done)
    assert out.exists()


def test_a_fault_of_this_machine_at_the_plan_itself_is_no_answer(desk: TuningDesk) -> None:
    desk.answer('rm -r "$4"')
    done = desk.tune("--jobs", "1")
    assert isinstance(done.error, BadInput)
    assert "the step cannot be compiled here: No such file or directory" in str(done.error)
    assert done.out == ""
    assert desk.runs == 1


def test_where_nothing_can_be_kept_a_line_says_so(
    desk: TuningDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk.plan))  # a file, so no folder for anybody
    desk.answer(desk.compiled())
    done = desk.tune("--jobs", "1", "--budget", "0.001s")
    assert done.status == 0
    assert words(done).count("the result is not kept for the next time") == 1
    assert "goes on from here" not in words(done)
    assert "only the plan was compiled" in done.out
    assert "nothing but the plan itself was compiled: it stays" in done.out


def test_the_flags_as_json() -> None:
    for arguments in (["--list-flags", "--json"], ["--json", "--list-flags"]):
        done = CliRunner().invoke(tune, arguments, standalone_mode=False)
        document = json.loads(done.stdout)
        assert len(document["flags"]) == len(options())
        assert document["flags"][0]["name"] == options()[0].name


def test_without_a_plan() -> None:
    done = CliRunner().invoke(tune, ["--json"], standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    assert "muster tune plan.json" in str(done.exception)


def words(done: Done) -> str:
    """What was printed, on one line."""
    return " ".join(done.out.split())


def test_out_must_not_be_the_plan(desk: TuningDesk) -> None:
    done = desk.tune("--out", str(desk.plan))
    assert isinstance(done.error, BadInput)


INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from muster.proof import compiler
sys.executable = sys.argv[1]
compiler.versions = lambda: {"jax": "1", "jaxlib": "1", "libtpu": "1"}
from muster.cli.main import run
sys.exit(run(["tune", *sys.argv[2:]]))
"""


def begin(
    desk: TuningDesk, *arguments: str, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    child = str(desk.folder / "child")
    return subprocess.Popen(
        [_python(), "-c", INTERRUPTED, child, str(desk.plan), *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def start(desk: TuningDesk, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process of its own; returns when a compilation takes long."""
    started = begin(desk, *arguments)
    until = time.monotonic() + 60
    while not (desk.folder / "pids").exists() and time.monotonic() < until:
        time.sleep(0.1)
    return started


def slow(desk: TuningDesk, *, after: int) -> None:
    """So many are answered at once; all others take longer than anybody waits."""
    waits = f"echo $$ >> {desk.folder}/pids; sleep 600"
    more = f'[ "$(wc -l < {desk.folder}/runs)" -gt {after} ]'
    desk.answer(f"if {more}; then {waits}; fi\n{desk.compiled()}")


def assert_no_child_is_left(desk: TuningDesk) -> None:
    for pid in map(int, (desk.folder / "pids").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list((desk.folder / "cache").rglob("new-*"))  # nor what it had begun to write


@pytest.mark.parametrize(
    "signals", [["SIGINT"], ["SIGTERM"], ["SIGHUP"], ["SIGINT", "SIGINT", "SIGTERM"]], ids=str
)
def test_a_signal_prints_the_best_so_far_and_leaves_no_child(
    desk: TuningDesk, signals: list[str]
) -> None:
    slow(desk, after=1)  # the plan itself
    out = desk.folder / "tuned.json"
    started = start(desk, "--out", str(out))
    for each in signals:
        started.send_signal(signal.Signals[each])
        time.sleep(0.01)
    printed, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "interrupted; only the plan was compiled" in printed
    assert "Traceback" not in said
    assert json.loads(out.read_text())["tuned"]["fits"]
    assert_no_child_is_left(desk)


def test_a_signal_before_anything_is_compiled(desk: TuningDesk) -> None:
    slow(desk, after=0)
    out = desk.folder / "tuned.json"
    started = start(desk, "--out", str(out), "--json")
    started.send_signal(signal.SIGTERM)
    printed, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    document = json.loads(printed)
    assert (document["interrupted"], document["explanation"]) == (True, ["nothing was compiled"])
    assert "nothing was compiled, so" in said
    assert not out.exists()
    assert_no_child_is_left(desk)


def test_progress_that_nobody_reads_ends_no_search(desk: TuningDesk) -> None:
    desk.answer(desk.compiled())
    reading, writing = os.pipe()
    os.close(reading)  # as after `2>&1 | head -1`
    out = desk.folder / "tuned.json"
    started = begin(desk, "--out", str(out), "--jobs", "1", "--budget", "1s", stderr=writing)
    os.close(writing)
    printed, _ = started.communicate(timeout=60)
    assert started.returncode == 0
    assert "a step, fsdp 16" in printed
    assert out.exists()


def _python() -> str:
    """The interpreter; `sys.executable` is the stand-in's."""
    return str(Path(sys.prefix) / "bin" / "python")
