"""The book's table of memory, and the fewest chips that hold it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UnknownName
from muster.roofline.memory import BookMemory, book_memory, dtype_bytes, fewest_chips

from .cases import BATCH, BATCH_OF_MEMORY_TABLE, HBM, POD, book


def _book_70b(*, tokens: float, checkpoints: int = 2) -> BookMemory:
    return book_memory(parameters=70e9, D=8192, L=80, tokens=tokens, checkpoints=checkpoints)


def test_book_fewest_chips() -> None:
    case, memory = book()["llama3-70b-fewest-chips"], _book_70b(tokens=BATCH_OF_MEMORY_TABLE)
    assert case.agrees("parameters_bytes", memory.parameters)
    assert case.agrees("optimizer_bytes", memory.optimizer)
    assert case.agrees("activation_bytes", memory.activations)
    assert case.agrees("total_bytes", memory.total)
    assert fewest_chips(memory.total, HBM) == case.expect["chips"]


def test_book_memory_per_chip() -> None:
    case = book()["llama3-70b-memory-per-chip"]
    assert case.agrees("bytes_per_chip", _book_70b(tokens=BATCH).per_chip(POD))
    many = _book_70b(tokens=BATCH, checkpoints=12).per_chip(POD)
    assert case.agrees("bytes_per_chip_12_checkpoints", many)


def test_an_unknown_dtype_names_the_choices() -> None:
    with pytest.raises(UnknownName, match="bf16"):
        dtype_bytes("b16")


@given(total=st.floats(1, 1e15), hbm=st.floats(1e9, 1e12))
def test_the_fewest_chips_hold_it_and_one_less_does_not(total: float, hbm: float) -> None:
    chips = fewest_chips(total, hbm)
    assert total / chips <= hbm * (1 + 1e-12)
    assert chips == 1 or total / (chips - 1) > hbm * (1 - 1e-12)
