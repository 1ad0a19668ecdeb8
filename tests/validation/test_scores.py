"""Groups, halves, scores and reasons, on predictors whose errors are known."""

from dataclasses import replace

import pytest

from muster.errors import BadInput
from muster.validation.groups import group_setups, half_of
from muster.validation.predict import predict_setup
from muster.validation.reasons import explanations, likely_reason
from muster.validation.runs import Run
from muster.validation.score import (
    errors_by,
    errors_of,
    half_name,
    hardware_of,
    parallelism_of,
    score_runs,
    source_of,
    worst_groups,
)
from muster.validation.setup import Setup, setup_of


def right(setup: Setup) -> float:
    return setup.step_seconds


def test_a_perfect_predictor_has_no_error(runs: dict[str, Run]) -> None:
    scores = score_runs(runs.values(), right)
    assert len(scores.rows) == 804
    assert len(scores.skipped) == 274
    assert 440 <= len(scores.groups) <= 452
    line = errors_of("all", scores.groups)
    assert line is not None
    assert line.rows == 530
    assert (line.median, line.mean) == pytest.approx((0, 0), abs=1e-12)


def test_errors_are_predicted_over_measured(runs: dict[str, Run]) -> None:
    scores = score_runs(runs.values(), lambda setup: 1.1 * setup.step_seconds)
    line = errors_of("all", scores.groups)
    assert line is not None
    assert (line.median, line.mean, line.bias, line.worst) == pytest.approx((0.1,) * 4)
    assert all(row.error == pytest.approx(0.1) for row in scores.rows if not row.skipped)


def test_rows_of_one_set_up_are_averaged_geometrically(runs: dict[str, Run]) -> None:
    keys = ("tpu-recipes-072", "tpu-recipes-073", "tpu-recipes-074")
    scores = score_runs((runs[key] for key in keys), lambda _: 9.0)
    (score,) = scores.groups
    assert len(score.group.setups) == 3
    assert score.group.measured_seconds == pytest.approx((9.38 * 8.39 * 7.95) ** (1 / 3))
    reason = likely_reason(score.group, 1.1 * score.group.measured_seconds)
    assert reason == "its measurements differ by 18%"
    assert len({row.group for row in scores.rows}) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch_sequences": 512, "per_device_batch": 8.0},
        {"remat_policy": "none"},
        {"n_layers": 47},
        {"attention_kernel": "splash"},
        {"weight_dtype": "bf16"},
        {"hardware": "v5p"},
        {"source_group": "other"},
    ],
)
def test_what_differs_in_the_set_up_is_another_group(
    runs: dict[str, Run], changes: dict[str, object]
) -> None:
    one = runs["maxtext-001"]
    setups = [setup_of(one), setup_of(replace(one, **changes))]  # type: ignore[arg-type]
    assert all(isinstance(each, Setup) for each in setups)
    assert len(group_setups(each for each in setups if isinstance(each, Setup))) == 2


def test_versions_and_notes_are_no_other_group(runs: dict[str, Run]) -> None:
    one = runs["maxtext-001"]
    again = replace(one, id="x", date="2030", source="another commit", measured_mfu_percent=50.0)
    setups = [each for each in map(setup_of, (one, again)) if isinstance(each, Setup)]
    assert len(group_setups(setups)) == 1


def test_groups_do_not_depend_on_order_or_company(runs: dict[str, Run]) -> None:
    forward = score_runs(runs.values(), right)
    backward = score_runs(reversed(list(runs.values())), right)
    assert {each.group.id for each in forward.groups} == {each.group.id for each in backward.groups}
    assert {row.id: row.group for row in forward.rows} == {
        row.id: row.group for row in backward.rows
    }


def test_halves_are_near_halves(runs: dict[str, Run]) -> None:
    scores = score_runs(runs.values(), right)
    fit, held = errors_by(scores.groups, half_name)
    assert {fit.name, held.name} == {"fit", "held back"}
    assert abs(fit.groups - held.groups) < 80
    assert half_of("maxtext") == half_of("maxtext")


def test_tables_part_the_groups(runs: dict[str, Run]) -> None:
    scores = score_runs(runs.values(), right)
    for key in (source_of, hardware_of, half_name, parallelism_of):
        lines = errors_by(scores.groups, key)
        assert sum(line.groups for line in lines) == len(scores.groups)
        assert [line.groups for line in lines] == sorted(
            (line.groups for line in lines), reverse=True
        )


def test_worst_groups_come_first(runs: dict[str, Run]) -> None:
    def off(setup: Setup) -> float:
        return setup.step_seconds * (3 if setup.id == "nemo-002" else 1.01)

    scores = score_runs(runs.values(), off)
    worst = worst_groups(scores.groups, above=0.4)
    assert [each.setup.id for each in worst] == ["nemo-002"]
    assert worst[0].reason.startswith("not explained")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (float("nan"), "no prediction: nan seconds"),
        (0.0, "no prediction: 0.0 seconds"),
        (BadInput("no such program"), "no prediction: no such program"),
        (ZeroDivisionError("division by zero"), "no prediction: ZeroDivisionError: division by"),
        (KeyError("f4"), "no prediction: KeyError: 'f4'"),
    ],
)
def test_a_predictor_that_fails_skips_the_row(
    runs: dict[str, Run], answer: float | Exception, reason: str
) -> None:
    def fails(setup: Setup) -> float:
        del setup
        if isinstance(answer, Exception):
            raise answer
        return answer

    (row,) = score_runs([runs["nemo-002"]], fails).rows
    assert row.skipped is not None
    assert row.skipped.startswith(reason)
    assert row.measured_seconds == pytest.approx(1.4001, rel=1e-3)
    assert (row.predicted_seconds, row.error, row.group) == (None, None, None)


def test_no_rows_that_can_be_predicted(runs: dict[str, Run]) -> None:
    scores = score_runs([runs["levanter-001"]], right)
    assert scores.groups == ()
    assert errors_of("none", scores.groups) is None


@pytest.mark.parametrize(
    ("key", "off", "reason"),
    [
        ("megatron-bridge-103", 1.45, "virtual stages, not published"),
        ("torchtitan-023", 0.71, "fp8 matmuls at bf16's rate"),
        ("vtrain-044", 0.64, "not explained"),
        ("vtrain-044", 0.98, ""),
        ("torchtitan-005", 1.38, "not explained: "),
        ("torchtitan-005", 1.1, "the limit of 500 W"),
        ("fms-fsdp-005", 1.21, "remat 'selective', approximated"),
        ("paxml-003", 3.0, "not explained"),
    ],
)
def test_a_reason_explains_most_of_the_gap(
    runs: dict[str, Run], key: str, off: float, reason: str
) -> None:
    (group,) = group_setups([made(runs, key)])
    told = likely_reason(group, off * group.measured_seconds)
    assert told.startswith(reason) if reason else told == ""
    shares = [each.share for each in explanations(group, off * group.measured_seconds)]
    if told and not told.startswith("not explained"):
        assert max(shares) >= 0.5
    else:
        assert not told or max(shares, default=0.0) < 0.5


def test_what_holds_of_every_row_of_a_source_is_no_reason(runs: dict[str, Run]) -> None:
    """A kernel that was not named could only make these rows quicker still."""
    scores = score_runs((run for key, run in runs.items() if "vtrain" in key), predict_setup)
    slow = [each for each in scores.groups if each.error < -0.2]
    assert slow
    assert not any("attention" in each.reason for each in slow)


def made(runs: dict[str, Run], key: str) -> Setup:
    setup = setup_of(runs[key])
    assert isinstance(setup, Setup)
    return setup
