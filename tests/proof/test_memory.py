"""Memory term by term: the program's own arrays beside the plan's."""

from dataclasses import replace

import pytest

from muster.planner.build import make_plan
from muster.planner.choice import AXES, Restrictions
from muster.planner.plan_file import PlannedRun, planned_run
from muster.proof.compiler import Memory
from muster.proof.memory import MemoryVerdict, argument_bytes, kept_by_layers, memory_verdict
from tests.proof.fixtures import NAMES, facts_of, program_of

GB = 10**9
LAYERS = 4


def with_estimate(name: str) -> PlannedRun:
    """The plan that the planner makes of a program's layout."""
    run = planned_run(facts_of(name)["plan"], where=name)
    fixed = {axis: getattr(run.layout, axis) for axis in AXES}
    held = Restrictions(fixed=fixed, remat=run.remat)
    plan = make_plan(run.architecture, run.cluster, run.workload, restrictions=held)
    return planned_run(plan.to_json(), where=name)


def counted(name: str, temporaries: int) -> Memory:
    arguments = sum(argument_bytes(program_of(name)).values())
    return Memory(
        arguments=arguments,
        outputs=arguments,
        aliased=arguments,
        temporaries=temporaries,
        code=0,
        peak=0,
        host_temporaries=0,
    )


def judged(name: str, temporaries: int) -> MemoryVerdict:
    return memory_verdict(with_estimate(name), counted(name, temporaries), program_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_the_plans_but_for_padding(name: str) -> None:
    verdict = judged(name, GB)
    terms = {term.name: term for term in verdict.terms}
    for term in (terms["parameters"], terms["moments"]):
        assert term.compiled is not None
        assert term.predicted is not None
        assert term.predicted <= term.compiled * (1 + 1e-6)
        assert term.compiled == pytest.approx(term.predicted, rel=0.01)
    assert terms["batch"].predicted is None
    assert terms["batch"].compiled == argument_bytes(program_of(name))["batch"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_terms_add_up_to_the_compilers_total(name: str) -> None:
    verdict = judged(name, GB)
    assert sum(term.compiled or 0 for term in verdict.terms) == pytest.approx(verdict.total)
    planned = sum(term.predicted or 0 for term in verdict.terms)
    assert planned == pytest.approx(verdict.predicted_total)


@pytest.mark.parametrize("name", ["llama-v5p-fsdp64", "llama-v5p-hybrid", "llama-v5p-sequence"])
def test_activations_that_the_layers_keep_are_the_plans(name: str) -> None:
    activations, _ = kept_by_layers(program_of(name), LAYERS)
    plan = with_estimate(name).document["estimate"]
    assert activations == plan["memory_per_chip"]["activations"]  # type: ignore[index]


def test_gradients_have_the_weights_shapes() -> None:
    _, gradients = kept_by_layers(program_of("llama-v5p-hybrid"), LAYERS)
    held = argument_bytes(program_of("llama-v5p-hybrid"))["parameters"]
    ends = 2 * 32000 * 1024 * 2 // 4
    assert gradients == pytest.approx(held - ends, rel=0.001)  # embedding and head stand apart


def test_what_waits_on_the_host_takes_no_hbm() -> None:
    activations, _ = kept_by_layers(program_of("llama-v6e-offload"), LAYERS)
    assert activations < 0.1 * kept_by_layers(program_of("llama-v5p-one-chip"), LAYERS)[0]


def test_temporaries_that_are_smaller_than_the_loops_arrays_stay_one_term() -> None:
    verdict = judged("llama-v5p-fsdp64", 10**6)
    assert [term.name for term in verdict.terms][-1] == "within the step"


def test_a_total_that_is_far_off_names_the_term() -> None:
    verdict = judged("llama-v5p-fsdp64", GB)
    assert not verdict.close
    assert "below the compiler's: most of it workspace and logits" in verdict.why
    near = replace(verdict, predicted_total=verdict.total * 1.05)
    assert near.close
    assert near.why == "the plan's total is 5% above the compiler's"
    document = near.to_json()
    assert document["within_tenth"] is True
    assert document["terms"][0]["name"] == "parameters"


def test_gaps_between_buffers_are_said() -> None:
    name = "llama-v5p-fsdp64"
    of = replace(counted(name, GB), peak=6 * GB // 10)
    verdict = memory_verdict(with_estimate(name), of, program_of(name))
    assert verdict.gaps == 4 * GB // 10
    assert verdict.why.endswith("of which at least 400 MB are gaps between buffers")
    assert not judged(name, GB).gaps  # where the compiler says no peak


def test_a_plan_that_predicts_no_memory() -> None:
    run = planned_run(facts_of("llama-v5p-fsdp64")["plan"], where="x")
    verdict = memory_verdict(run, counted("llama-v5p-fsdp64", GB), None)
    assert verdict.why == "the plan predicts no memory"
    assert not verdict.terms
