"""Choices of how a step is written change its numbers by rounding alone."""

from dataclasses import replace

import pytest

from muster.planner.step_choices import DEFAULT_STEP, StepChoices
from muster.roofline.remat import Remat
from muster.sharding.mesh import Layout
from tests.training import tiny

LAYOUT = Layout(fsdp=4, tensor=2)
CHOICES = (
    StepChoices(layers_unrolled=2),
    StepChoices(layers_unrolled=4, loss_chunk_tokens=12),  # neither divides
    StepChoices(loss_chunk_tokens=1),
)


def losses(choices: StepChoices) -> list[float]:
    model = tiny.architecture(num_hidden_layers=3)
    plan = replace(tiny.planned(model, LAYOUT, remat=Remat.MINIMAL), step=choices)
    return tiny.trainer(plan).losses(map(tiny.packed, range(3)))


@pytest.fixture(scope="module")
def usual() -> list[float]:
    return losses(DEFAULT_STEP)


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_training_has_the_same_curve(choices: StepChoices, usual: list[float]) -> None:
    assert losses(choices) == pytest.approx(usual, rel=1e-5)
    assert usual[-1] < usual[0]


def test_the_plans_choices_reach_the_step() -> None:
    plan = tiny.planned(tiny.architecture(), LAYOUT)
    chosen = replace(plan, step=StepChoices(layers_unrolled=2, loss_chunk_tokens=5))
    program = tiny.trainer(chosen).program
    assert program.model.choices.layers_unrolled == 2
    assert program.objective.chunk_tokens == 5
