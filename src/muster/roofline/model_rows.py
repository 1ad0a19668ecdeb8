"""One row a model: its shape and size side by side with others, to be filtered and sorted.

Columns go by a word or by the book's letter: layers L, d_model D, d_ff F, heads N, kv_heads K,
head_dim H, vocab V, experts E, experts_per_token k.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NoReturn

from muster.errors import BadInput, UnknownName, shorten
from muster.models.architecture import Architecture
from muster.roofline.params import ParamCounts, count_table
from muster.sharding.weights import weight_table
from muster.units import parse_count

type Cell = int | float | bool | str | None


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """The figures by which models are compared; None where a model has no such thing.

    Attributes:
        d_ff: of the most frequent MLP; of one routed expert, for a mixture of experts.
        params: trainable parameters.
        stored: parameters that the checkpoint holds.
        active: parameters that one token meets.
        mlp: share of `params` in MLPs and experts, 0 to 1.
        attention: share of `params` in attention and other token mixers.
        context: tokens.
    """

    name: str
    family: str
    layers: int
    d_model: int
    d_ff: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocab: int
    experts: int | None
    experts_per_token: int | None
    params: int
    stored: int
    active: int
    mlp: float
    attention: float
    context: int | None
    tied: bool


LETTERS = {
    "L": "layers",
    "D": "d_model",
    "F": "d_ff",
    "N": "heads",
    "K": "kv_heads",
    "H": "head_dim",
    "V": "vocab",
    "E": "experts",
    "k": "experts_per_token",
}
COLUMNS = tuple(field.name for field in fields(ModelRow))
_OTHER_NAMES = {
    "num_layers": "layers",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "vocab_size": "vocab",
    "num_experts": "experts",
    "trainable": "params",
    "parameters": "params",
    "size": "params",
    "context_length": "context",
    "tied_embeddings": "tied",
    "attn": "attention",
    "model_type": "family",
}
_SHARES = {"mlp", "attention"}
_TEXTS = {"name", "family"}
_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CONDITION = re.compile(r"\s*([\w ]*?)\s*(>=|<=|!=|==|=|>|<)\s*(.*?)\s*")


def model_row(architecture: Architecture) -> ModelRow:
    """Measure one model."""
    table = weight_table(architecture)
    counts: ParamCounts = count_table(architecture, table)
    by_component: dict[str, int] = {}
    for weight in table:
        if weight.trainable:
            part = weight.component
            by_component[part] = by_component.get(part, 0) + weight.count

    def share(*parts: str) -> float:
        return sum(by_component.get(part, 0) for part in parts) / counts.trainable

    experts = architecture.experts
    return ModelRow(
        name=architecture.name,
        family=architecture.family,
        layers=architecture.num_layers,
        d_model=architecture.d_model,
        d_ff=architecture.d_ff,
        heads=architecture.num_heads,
        kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        vocab=architecture.vocab_size,
        experts=experts.num_experts if experts else None,
        experts_per_token=experts.experts_per_token if experts else None,
        params=counts.trainable,
        stored=counts.stored,
        active=counts.active,
        mlp=share("mlp", "experts"),
        attention=share("attention", "recurrence"),
        context=architecture.context_length,
        tied=architecture.tied_embeddings,
    )


def column(text: str) -> str:
    """The column that a word or letter means.

    >>> column("D"), column("d-model"), column("num_layers")
    ('d_model', 'd_model', 'layers')
    """
    name = text.strip()
    if name in LETTERS:
        return LETTERS[name]
    word = re.sub(r"[\s-]+", "_", name.lower())
    word = _OTHER_NAMES.get(word, word)
    if word not in COLUMNS:
        raise UnknownName("column", name, COLUMNS)
    return word


def sort_rows(rows: Iterable[ModelRow], by: str, *, descending: bool = False) -> list[ModelRow]:
    """Sort by a column; models that lack it come last either way."""
    key = column(by)
    present = [row for row in rows if getattr(row, key) is not None]
    missing = [row for row in rows if getattr(row, key) is None]
    return [*sorted(present, key=lambda row: _order(row, key), reverse=descending), *missing]


def _order(row: ModelRow, key: str) -> tuple[float, str]:
    value = getattr(row, key)
    return (0.0, value.lower()) if isinstance(value, str) else (value, "")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A test of one column."""

    column: str
    comparison: str
    value: Cell

    def holds(self, row: ModelRow) -> bool:
        """Say whether a row passes; one that lacks the column passes no test but `!=`."""
        cell = getattr(row, self.column)
        if cell is None:
            return self.comparison == "!="
        wanted = self.value
        equal: bool = cell == wanted
        if isinstance(cell, str):
            equal = cell.lower() == str(wanted).lower()
        if self.comparison in {"=", "==", "!="}:
            return equal != (self.comparison == "!=")
        assert not isinstance(cell, str)
        assert isinstance(wanted, int | float)
        return _COMPARE[self.comparison](cell, wanted)


def parse_condition(text: str) -> Condition:
    """Read a test such as `params>30B`, `d_model=8192`, `mlp>=80%`, `tied=yes`, `family=llama`.

    Raises:
        BadInput: no comparison, an unknown column, or a value that does not suit the column.

    >>> parse_condition("params > 30B")
    Condition(column='params', comparison='>', value=30000000000)
    """
    match = _CONDITION.fullmatch(text)
    if match is None or not match[1] or not match[3]:
        raise BadInput(f"filter {shorten(text)} is not a comparison; write it like 'params>30B'")
    name, comparison = column(match[1]), match[2]
    value = _value(name, match[3])
    if isinstance(value, str | bool) and comparison not in {"=", "==", "!="}:
        raise BadInput(f"filter {shorten(text)}: {name} can only be equal (=) or not (!=)")
    return Condition(column=name, comparison=comparison, value=value)


def _value(name: str, text: str) -> Cell:
    if name in _TEXTS:
        return text
    if name == "tied":
        return _WORDS[text.lower()] if text.lower() in _WORDS else _refuse(name, text, "yes or no")
    if name in _SHARES:
        return _share(name, text)
    if text == "0":
        return 0
    return parse_count(text, f"filter on {name}", binary=name == "context")


def _share(name: str, text: str) -> float:
    number = text.rstrip("% ")
    if not re.fullmatch(r"\d{1,9}\.?\d{0,9}", number):
        _refuse(name, text, "80% or 0.8")
    return float(number) / 100 if text.endswith("%") or float(number) > 1 else float(number)


def _refuse(name: str, text: str, example: str) -> NoReturn:
    raise BadInput(f"filter on {name}: {shorten(text)} is not a value; write {example}")


def filter_rows(rows: Sequence[ModelRow], conditions: Iterable[Condition]) -> list[ModelRow]:
    """The rows that pass every test."""
    tests = tuple(conditions)
    return [row for row in rows if all(test.holds(row) for test in tests)]
