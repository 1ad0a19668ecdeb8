"""With the TPU compiler installed: real compilations, and real refusals."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.hardware import parse_cluster
from muster.models.hf_config import architecture_from_config
from muster.planner.build import make_plan
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.child import ENVIRONMENT
from muster.proof.compiler import compile_plan, compile_with_known_options
from muster.proof.hlo import collectives, parse
from muster.proof.verdict import judge
from muster.roofline.workload import Workload
from muster.training.parts import parts
from tests.proof.make_programs import LLAMA, plan_of

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: muster[tpu]")
pytestmark = pytest.mark.slow
# What does not fit need not be compiled well: with less vector memory it takes a fraction.
QUICKLY = {"xla_tpu_scoped_vmem_limit_kib": "16384"}


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
    joined = {axis for each in collectives(program, made.mesh) for axis in each.axes}
    assert {axis.partition(":")[0] for axis in joined} == {"fsdp", "tensor"}
    assert made.peak_rss_bytes > 1e8
    assert compile_plan(small("llama-v5p-fsdp-tensor"), layers=1, folder=tmp_path).kept


def two_layers(*, width: int = 1024) -> PlannedRun:
    """A plan that the planner makes, of two layers on four chips."""
    config = LLAMA | {
        "num_hidden_layers": 2,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": width // 128,
        "num_key_value_heads": width // 128,
    }
    plan = make_plan(
        architecture_from_config(config, name=f"two layers of {width}"),
        parse_cluster("v5p:2x2x1"),
        Workload(sequence_length=1024, batch_sequences=4, param_dtype="bf16"),
    )
    return planned_run(plan.to_json(), where="small")


def test_a_verdict_on_two_layers(tmp_path: Path) -> None:
    verdict = judge(two_layers(), compile_plan(two_layers(), folder=tmp_path))
    assert verdict.fits
    assert verdict.memory is not None
    terms = {term.name: term for term in verdict.memory.terms}
    for name in ("parameters", "moments"):
        assert terms[name].compiled == pytest.approx(terms[name].predicted, rel=0.01)
    assert verdict.traffic
    assert all(row.axes for row in verdict.traffic)
    assert verdict.compiled_flops == pytest.approx(verdict.predicted_flops, rel=0.15)


def test_two_layers_that_cannot_fit(tmp_path: Path) -> None:
    plan = two_layers(width=32768)
    verdict = judge(plan, compile_plan(plan, options=QUICKLY, folder=tmp_path))
    assert not verdict.fits
    assert verdict.compilation.status == "too_large"
    assert verdict.compilation.needed > verdict.compilation.usable


def test_options_that_are_refused_are_left_out(tmp_path: Path) -> None:
    options = {"xla_tpu_no_such_option": "true", "xla_tpu_scoped_vmem_limit_kib": "lots"}
    plan = small("llama-v5p-one-chip")
    made = compile_with_known_options(plan, options, folder=tmp_path)
    assert made.status == "compiled"
    # The compiler names one at a time, in no order that it promises.
    assert set(made.refused) == {f"{name}={value}" for name, value in options.items()}


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
    wide_plan = planned_run(document, where="wide")
    made = compile_plan(wide_plan, options=QUICKLY, folder=tmp_path)
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


@pytest.mark.parametrize(
    ("hardware", "rows", "columns"),
    [("v5p:4x4x4", 4096, 128256), ("v5p:8x8x8", 8192, 28672), ("v6e:16x16", 8192, 128256)],
)
def test_a_gradient_is_scattered_not_summed_whole(hardware: str, rows: int, columns: int) -> None:
    """LLaMA-3's head and MLP, cut as `training.parts` cuts them."""
    chips = parse_cluster(hardware).chips
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.training.scatters_for_tpu",
            *(hardware, str(chips), str(rows), str(columns)),
        ],
        cwd=Path(__file__).parents[2],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    widths = parts(columns, axes=hardware.count("x") + 1, chips=chips)
    assert len(widths) > 1
    assert sorted(done.stdout.split("\n")) == sorted(
        ["", *(f"reduce-scatter bf16[{rows // chips},{width}]" for width in widths)]
    )
