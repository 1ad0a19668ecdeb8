"""What `muster tune` says of each trial where there is no terminal."""

from typing import Any

import pytest

from muster.cli.tune_progress import Shown
from muster.tune.jobs import Budget
from muster.tune.search import Trial
from muster.tune.trial import Answer


def test_a_line_that_is_too_long_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    died = Answer(status="refused", message="the compiler says at length " * 4)
    nothing: Any = None
    trial = Trial(rung="alone", what="data 4 x fsdp 256 x sequence 2", planned=nothing, answer=died)
    Shown(Budget(seconds=60.0), silent=False).seen(trial)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert max(map(len, said)) <= 100
    assert said[1].startswith("  ")
    assert " ".join(said).replace("   ", " ").startswith(f"{trial.what}: the compiler says")
