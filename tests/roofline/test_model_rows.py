"""Filters and orders of the big table."""

import pytest

from muster.errors import BadInput, UnknownName
from muster.models.registry import find_model, list_models
from muster.roofline.model_rows import (
    COLUMNS,
    column,
    filter_rows,
    model_row,
    parse_condition,
    sort_rows,
)

ROWS = [model_row(model) for model in list_models()]


def names(*conditions: str) -> set[str]:
    return {row.name for row in filter_rows(ROWS, map(parse_condition, conditions))}


def test_a_row() -> None:
    row = model_row(find_model("mixtral-8x7b"))
    assert (row.layers, row.d_model, row.d_ff, row.heads, row.kv_heads) == (32, 4096, 14_336, 32, 8)
    assert (row.experts, row.experts_per_token) == (8, 2)
    assert (row.params, row.active) == (46_702_792_704, 12_879_925_248)
    assert 0.96 < row.mlp < 0.98
    assert row.context == 32_768


def test_shares_are_of_one_whole() -> None:
    assert all(0 <= row.mlp + row.attention <= 1 for row in ROWS)


@pytest.mark.parametrize("name", [*COLUMNS, "L", "D", "F", "N", "K", "H", "V", "E", "k"])
def test_sorts_by_every_column_with_the_missing_last(name: str) -> None:
    for descending in (False, True):
        ordered = [
            getattr(row, column(name)) for row in sort_rows(ROWS, name, descending=descending)
        ]
        assert len(ordered) == len(ROWS)
        present = [value for value in ordered if value is not None]
        assert ordered[len(present) :] == [None] * (len(ROWS) - len(present))
        keys = [value.lower() if isinstance(value, str) else value for value in present]
        assert keys == sorted(keys, reverse=descending)


def test_filters() -> None:
    assert names("params>400B") >= {"Llama-3.1-405B", "DeepSeek-V3"}
    assert names("params>30e9", "params<=40e9", "family=llama") == {"LLaMA-1-30B"}
    assert names("D=16384") == {"Llama-3.1-405B"}
    assert names("tied=yes") | names("tied!=yes") == {row.name for row in ROWS}
    assert names("mlp>=80%") == names("mlp >= 0.8")
    assert names("context>=1M") == {"Llama-4-Scout-17B-16E", "Llama-4-Maverick-17B-128E"}
    assert names("experts>0") == {row.name for row in ROWS if row.experts}
    assert names("name=gpt-2") == {"GPT-2"}
    assert names("name!=gpt-2") == {row.name for row in ROWS} - {"GPT-2"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "params", ">3", "params>", "params>>3", "params>x", "params=-1", "tied=maybe"),
        *("tied>yes", "name>a", "mlp>much", "mlp>1e400", "params>3%", "experts>1.5"),
    ],
)
def test_a_filter_that_is_none(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_condition(text)
    assert len(str(caught.value).splitlines()) == 1


def test_an_unknown_column_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean layers"):
        column("layer")
