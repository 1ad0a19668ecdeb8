"""The verdict on a plan from a compilation that is at hand, and the command that prints it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.inspect import inspect
from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.compiler import Compilation, Memory
from muster.proof.verdict import judge
from muster.report.verdict_report import print_verdict
from tests.proof.fixtures import facts_of, text_of
from tests.proof.keep import PROGRAMS

NAME = "llama-v5p-fsdp-tensor"
GB = 10**9


def planned(name: str = NAME) -> PlannedRun:
    return planned_run(facts_of(name)["plan"], where=name)


def compilation(tmp_path: Path, *, temporaries: int = 3 * GB, name: str = NAME) -> Compilation:
    facts = facts_of(name)
    text = tmp_path / "program.hlo.txt"
    text.write_text(text_of(name), "utf-8")
    memory = Memory(
        arguments=2 * GB,
        outputs=2 * GB,
        aliased=2 * GB,
        temporaries=temporaries,
        code=0,
        peak=0,
        host_temporaries=0,
    )
    return Compilation(
        status="compiled",
        text=text,
        memory=memory,
        mesh=facts["mesh"],
        coordinates=tuple(tuple(place) for place in facts["coordinates"]),
        versions=facts["versions"],
    )


def test_what_fits_passes_and_says_by_how_much(tmp_path: Path) -> None:
    verdict = judge(planned(), compilation(tmp_path))
    assert verdict.fits
    assert verdict.memory is not None
    assert verdict.memory.total == 5 * GB
    assert verdict.timeline is not None
    document = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert document["passes"] is True
    assert document["memory_per_chip"]["temporaries"] == 3 * GB
    assert document["step_seconds"] > document["compute_seconds"] > 0


def test_what_needs_more_than_is_usable_does_not_pass(tmp_path: Path) -> None:
    verdict = judge(planned(), compilation(tmp_path, temporaries=102 * GB))
    assert verdict.memory is not None
    assert verdict.memory.total > verdict.memory.usable
    assert not verdict.fits
    assert verdict.to_json()["passes"] is False


def test_every_collective_is_of_an_axis_that_the_mesh_splits(tmp_path: Path) -> None:
    verdict = judge(planned(), compilation(tmp_path))
    axes = {axis.partition(":")[0] for each in verdict.collectives for axis in each.axes}
    assert axes == {"fsdp", "tensor"}
    assert all(each.seconds > 0 for each in verdict.collectives)
    sent = sum(each.bytes_per_chip for each in verdict.collectives if "fsdp" in each.axes)
    # Four layers of 16.8 M bf16 parameters, split twice by tensor, are gathered forwards and
    # backwards, and their gradients scattered: three times 7/8 of 67 MB, at the least.
    assert sent > 3 * 7 / 8 * 4 * (4 * 1024 * 1024 + 3 * 1024 * 4096) * 2 / 2


@pytest.mark.parametrize("status", ["too_large", "refused", "died"])
def test_what_does_not_compile_does_not_pass(
    status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Compilation(
        status=status,  # type: ignore[arg-type]
        message="the compiler process ended with SIGFPE",
        needed=120 * GB,
        usable=100 * GB,
        space="hbm",
    )
    verdict = judge(planned(), failed)
    assert not verdict.fits
    assert json.dumps(verdict.to_json(), allow_nan=False)
    print_verdict(verdict)
    said = capsys.readouterr().out
    assert ("120 GB of 100 GB of hbm" in said) == (status == "too_large")
    assert ("SIGFPE" in said) == (status != "too_large")


def test_what_is_no_step_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no such"):
        judge(planned(), Compilation(status="bad_input", message="no such step"))


@pytest.mark.parametrize("as_json", [True, False])
def test_inspect_reads_any_program(as_json: bool) -> None:
    file = PROGRAMS / "mixtral-v5p-expert4.hlo.txt.gz"
    arguments = [str(file), "--on", "v5p:2x2x4", *(["--json"] if as_json else [])]
    done = CliRunner().invoke(inspect, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    if as_json:
        document = json.loads(done.output)
        assert any("expert" in each["axes"] for each in document["collectives"])
        assert document["compute_cycles"] > 0
        assert document["findings"][0]["cost_seconds"] > 0
    else:
        assert "Findings" in done.output


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "not"), (b"HloModule x\n", "no computations"), (b"\xff\xfe\x00", "not UTF-8 text")],
)
def test_inspect_refuses_what_is_no_program(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "x.hlo.txt"
    file.write_bytes(content)
    done = CliRunner().invoke(inspect, [str(file), "--on", "v5p:2x2x4"], standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    assert says in str(done.exception)
    assert "\n" not in str(done.exception)
