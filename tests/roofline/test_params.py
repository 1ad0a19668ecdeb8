"""The components of every catalogue model, and what `muster params --json` is made of."""

import json
import math

import pytest

from muster.models.registry import catalogue_names, find_model
from muster.roofline.params import components, legend, param_counts, params_document, subtotals

MODELS = catalogue_names()


@pytest.mark.parametrize("name", MODELS)
def test_components_add_up(name: str) -> None:
    model = find_model(name)
    rows, counts = components(model), param_counts(model)
    assert sum(row.count for row in rows) == counts.trainable
    assert sum(subtotals(rows).values()) == counts.trainable
    assert math.isclose(sum(row.share for row in rows), 1, rel_tol=1e-12)
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize("name", MODELS)
def test_formulas_evaluate_under_the_printed_legend(name: str) -> None:
    model = find_model(name)
    letters = legend(model)
    for row in components(model):
        assert eval(row.formula, {}, letters) == row.count


def test_formulas_read_as_the_book_writes_them() -> None:
    formulas = {row.name: row.formula for row in components(find_model("llama-3-70b"))}
    assert formulas["layers.attention.query"] == "L*D*N*H"
    assert formulas["layers.mlp.down"] == "L*F*D"
    experts = {row.name: row.formula for row in components(find_model("mixtral-8x7b"))}
    assert experts["layers.experts.gate"] == "L*E*D*F"


def test_the_document_has_the_keys_of_the_design() -> None:
    document = params_document(find_model("deepseek-v3"))
    assert list(document) == ["muster", "model", "components", "params", "filled_in", "warnings"]
    assert document["params"] == {
        "trainable": 671_026_404_352,
        "stored": 671_026_419_200,
        "active": 37_552_282_624,
    }
    assert any("684,531,386,000" in str(line) for line in [document["warnings"]])


@pytest.mark.parametrize("name", MODELS)
def test_the_document_is_json(name: str) -> None:
    document = params_document(find_model(name))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
