"""The project's own rows, read once."""

import pytest

from muster.validation.runs import Run, load_runs


@pytest.fixture(scope="session")
def runs() -> dict[str, Run]:
    return {run.id: run for run in load_runs()}
