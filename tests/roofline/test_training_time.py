"""Durations and costs of runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.roofline.flops import six_n
from muster.roofline.memory import book_memory, fewest_chips
from muster.roofline.mfu import active_params
from muster.roofline.training_time import (
    step_seconds,
    steps,
    time_of_steps,
    tokens_per_second_per_chip,
    training_time,
)

from .cases import BATCH, BATCH_OF_MEMORY_TABLE, CORPUS, HBM, POD, C, book, published

FLOPS_70B = 6 * 70e9 * CORPUS


def test_book_years_on_one_chip() -> None:
    years = training_time(FLOPS_70B, chips=1, peak_flops=C).years
    assert book()["llama3-70b-total-flops"].agrees("years_on_one_v5p", years)


def test_book_days_on_a_pod() -> None:
    case = book()["llama3-70b-days-on-a-pod"]
    run = training_time(FLOPS_70B, chips=POD, peak_flops=C, mfu=0.4)
    assert case.agrees("seconds", run.seconds)
    assert case.agrees("days", run.days)


def test_book_days_on_fewest_chips() -> None:
    memory = book_memory(parameters=70e9, D=8192, L=80, tokens=BATCH_OF_MEMORY_TABLE)
    chips = fewest_chips(memory.total, HBM)
    days = training_time(FLOPS_70B, chips=chips, peak_flops=C, mfu=0.4).days
    assert book()["llama3-70b-days-on-fewest-chips"].agrees("days", days)


def test_book_days_on_four_pods() -> None:
    days = training_time(FLOPS_70B, chips=4 * POD, peak_flops=C, mfu=0.4).days
    assert book()["llama3-70b-four-pods"].agrees("days_at_40_mfu", days)


def test_book_days_of_405b_on_eight_pods() -> None:
    flops = six_n(active_params(published("Llama-3.1-405B"))).total * CORPUS
    days = training_time(flops, chips=8 * POD, peak_flops=C, mfu=0.4).days
    assert book()["llama3-405b-eight-pods"].agrees("days_at_40_mfu", days)


def test_a_step_of_part_5() -> None:
    """Part 5, question 3: 6 * 3e6 * 13e9 / (4096 * 4.6e14 * 0.4) = 300 ms."""
    seconds = step_seconds(
        flops_per_token=6 * 13e9, batch_tokens=3_000_000, chips=4096, peak_flops=4.6e14, mfu=0.4
    )
    assert seconds == pytest.approx(0.3, rel=0.05)


def test_hours_are_known_before_launch() -> None:
    """cases.md 49: 12,525 steps of 98.97 s are 344 h."""
    assert time_of_steps(12_525, 98.97, chips=64).hours == pytest.approx(344, abs=0.5)


def test_a_run_of_16_gpus() -> None:
    """cases.md 44, the other way round: at 2.8% the run takes its 13.5 h."""
    run = training_time(6 * 70e9 * 16.4e6, chips=16, peak_flops=312e12, mfu=0.0284)
    assert run.hours == pytest.approx(13.5, rel=1e-2)


@given(
    chips=st.integers(1, 10**5),
    mfu=st.floats(0.01, 1),
    batch_tokens=st.integers(1, 10**8),
    price=st.floats(0.1, 20),
)
def test_a_run_is_its_steps(chips: int, mfu: float, batch_tokens: int, price: float) -> None:
    one = step_seconds(
        flops_per_token=1e10, batch_tokens=batch_tokens, chips=chips, peak_flops=1e15, mfu=mfu
    )
    number = steps(10**12, batch_tokens)
    assert (number - 1) * batch_tokens < 10**12 <= number * batch_tokens
    run = training_time(1e10 * number * batch_tokens, chips=chips, peak_flops=1e15, mfu=mfu)
    assert time_of_steps(number, one, chips=chips).seconds == pytest.approx(run.seconds)
    rate = tokens_per_second_per_chip(flops_per_token=1e10, peak_flops=1e15, mfu=mfu)
    assert run.seconds * rate * chips == pytest.approx(number * batch_tokens)
    assert run.cost(price) == pytest.approx(run.days * 24 * chips * price)


def test_steps_of_the_book() -> None:
    assert steps(15 * 10**12, BATCH) == 3_576_279
