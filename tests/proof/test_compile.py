"""With the TPU compiler installed: real compilations, and real refusals."""

from dataclasses import replace
from pathlib import Path

import pytest

from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.compiler import compile_plan
from muster.proof.hlo import collectives, parse
from tests.proof.make_programs import plan_of

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: muster[tpu]")
pytestmark = pytest.mark.slow


def small(name: str, hardware: str | None = None) -> PlannedRun:
    plan = plan_of(name)
    if hardware is None:
        return plan
    document = dict(plan.document) | {"cluster": {"slice": hardware}}
    return planned_run(document, where=name)


def test_a_small_step(tmp_path: Path) -> None:
    made = compile_plan(small("llama-v5p-fsdp-tensor"), layers=1, folder=tmp_path)
    assert (made.status, made.message) == ("compiled", "")
    assert made.text is not None
    assert made.memory is not None
    assert made.memory.total > made.memory.temporaries > 0
    assert made.mesh["fsdp"] * made.mesh["tensor"] == len(made.coordinates) == 16
    assert {place[:3] for place in made.coordinates} == {
        (x, y, z) for x in range(2) for y in range(2) for z in range(4)
    }
    program = parse(made.text.read_text("utf-8"))
    assert not program.unknown
    assert {axis for each in collectives(program, made.mesh) for axis in each.axes} == {
        "fsdp",
        "tensor",
    }
    assert made.peak_rss_bytes > 1e8
    assert compile_plan(small("llama-v5p-fsdp-tensor"), layers=1, folder=tmp_path).kept


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    options = {"xla_tpu_no_such_option": "true"}
    made = compile_plan(small("llama-v5p-one-chip"), layers=1, options=options, folder=tmp_path)
    assert made.status == "refused"
    assert "xla_tpu_no_such_option" in made.message


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    plan = plan_of("llama-v5p-one-chip")
    wide = dict(plan.document["model"]["config"]) | {  # type: ignore[index]
        "hidden_size": 16384,
        "intermediate_size": 131072,
    }
    document = dict(plan.document) | {"model": {"name": "wide", "config": wide}}
    made = compile_plan(planned_run(document, where="wide"), folder=tmp_path)
    assert made.status == "too_large"
    assert made.space == "hbm"
    assert made.needed > made.usable > 90 * 1024**3


def test_a_plan_that_the_trainer_cannot_carry_out(tmp_path: Path) -> None:
    plan = plan_of("llama-v5p-one-chip")
    workload = replace(plan.workload, compute_dtype="fp8")
    document = dict(plan.document)
    document["workload"] = document["workload"] | {"compute_dtype": "fp8"}  # type: ignore[operator]
    made = compile_plan(replace(plan, workload=workload, document=document), folder=tmp_path)
    assert made.status == "bad_input"
    assert "fp8" in made.message
