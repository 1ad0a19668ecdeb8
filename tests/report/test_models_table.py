"""Every catalogue model can be shown, within the width of the page."""

import io

import pytest
from rich.console import Console

from muster.models.registry import catalogue_names, find_model
from muster.report.models_table import describe_mixer, model_page
from muster.report.params_table import params_page


def shown(page: object) -> list[str]:
    screen = Console(file=io.StringIO(), width=100, highlight=False, emoji=False)
    screen.print(page)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("name", catalogue_names())
def test_a_page_for_every_model(name: str) -> None:
    model = find_model(name)
    lines = shown(model_page(model))
    assert lines[0].startswith(name)
    assert max(map(len, lines)) <= 100
    assert len(lines) > len(shown(params_page(model)))


@pytest.mark.parametrize("name", catalogue_names())
def test_mixers_are_described_in_words(name: str) -> None:
    for layer in find_model(name).layers:
        assert describe_mixer(layer.mixer).split()[0] in {
            *("multi-head", "grouped-query", "multi-query", "latent", "no", "Mamba-2", "gated"),
        }
