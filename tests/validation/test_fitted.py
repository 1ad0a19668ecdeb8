"""The constants' file states the errors that the present model gives, and its fit is in order."""

import importlib.util
import sys
import tomllib
from types import ModuleType

import pytest

from muster.roofline.efficiency import DATA, NAMES, best_matmul_share, with_own_rates
from muster.validation.expected import expected_error
from muster.validation.fitted import present_errors, sentence, stated_errors
from muster.validation.predict import predict_setup
from muster.validation.runs import RUNS_FILE, Run
from muster.validation.score import HALF_PRECISION, Scores, score_runs

ROOT = RUNS_FILE.parents[4]


@pytest.fixture(scope="module")
def scores(runs: dict[str, Run]) -> Scores:
    return score_runs(runs.values(), predict_setup)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "scripts" / "fit_efficiencies.py"
    spec = importlib.util.spec_from_file_location("fit_efficiencies", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_stated_errors_are_those_of_the_present_model(scores: Scores) -> None:
    """If this fails after a change of the model: scripts/fit_efficiencies.py [--errors]."""
    kin = tomllib.loads(DATA.read_text(encoding="utf-8"))["kin"]
    assert present_errors(scores.groups, kin) == stated_errors()


def test_goals_of_the_step_time(scores: Scores) -> None:
    """Median under 8 %, mean under 12 %, of each half of every chip of five groups or more."""
    for table, errors in stated_errors().items():
        if not table.startswith("chip."):
            continue
        for half in ("fit", "held_back"):
            words = errors[half].split()
            if words[0] == "none" or int(words[0]) < 5:
                continue
            assert float(words[3]) < 8, (table, half)
            assert float(words[6]) < 12, (table, half)
    vtrain = [abs(g.error) for g in scores.groups if g.setup.run.source_group == "vtrain"]
    assert sum(vtrain) / len(vtrain) < 0.08


def test_every_fitted_constant_stands_in_the_file(script: ModuleType) -> None:
    text = DATA.read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    names = {name for part in script.PARTS for name in part.free}
    names |= {other for part in script.PARTS for tied in part.tied.values() for other in tied}
    assert all(name.rsplit(".", 1)[1] in NAMES for name in names)
    values = {}
    for name in names:
        table = tables
        for part in name.split("."):
            table = table[part]
        values[name] = float(table)  # type: ignore[arg-type]
        chosen = script.range_of(name)
        assert chosen.low <= values[name] <= chosen.high, name
    assert script.with_values(text, values) == text


def test_no_constant_is_fitted_twice(script: ModuleType) -> None:
    names = [name for part in script.PARTS for name in part.free]
    assert len(names) == len(set(names))


def test_rewriting_changes_one_line(script: ModuleType) -> None:
    text = "[a]\nx = 1\n\n[a.b]\nx = 2\n\n[c]\nx = 3\n"
    assert script.with_values(text, {"a.b.x": 0.5}) == text.replace("x = 2", "x = 0.5")
    with pytest.raises(SystemExit, match=r"no line 'y' in \[a\]"):
        script.with_values(text, {"a.y": 1.0})


def test_errors_in_words() -> None:
    assert sentence([]) == "none"
    assert sentence([0.5]) == "1 group, median 50.0 %, mean 50.0 %"


def test_groups_of_a_kin_count_for_its_chip(scores: Scores) -> None:
    whole = present_errors(scores.groups, {"h200": "h100", "a100-40": "a100"})
    apart = present_errors(scores.groups, {})
    assert "chip.h200" in apart
    assert "chip.h200" not in whole
    assert whole["chip.v5e"] == apart["chip.v5e"]


def test_set_ups_with_rates_of_their_own_say_nothing_of_their_chip(scores: Scores) -> None:
    """SimuMax's matmuls on B200 are fitted apart: no measure of other programs there."""
    assert with_own_rates() == {"simumax"}
    kin = tomllib.loads(DATA.read_text(encoding="utf-8"))["kin"]
    apart = [g for g in scores.groups if g.setup.run.source_group == "simumax"]
    assert len(apart) == 15
    assert set(present_errors(apart, kin)) == {"software.simumax"}
    known = expected_error("b200")
    assert (known.fitted, known.measured) == ("gb200", False)
    assert known.setups == len(
        [
            g
            for g in scores.groups
            if g.setup.cluster.chip.id == "gb200" and g.setup.formats.compute in HALF_PRECISION
        ]
    )


def test_a_matmul_is_not_fitted_beyond_the_best_measured(script: ModuleType) -> None:
    best = best_matmul_share("h100")
    assert best is not None
    assert script.range_of("chip.h100.matmul").high == best
    assert script.range_of("chip.a100.matmul").high == 1
