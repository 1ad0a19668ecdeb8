"""Programs whose calls cannot be followed are refused, at once."""

import pytest

from muster.errors import BadInput
from muster.proof.hlo import parse

HOW = {
    "call": "call(%p), to_apply=%c{}",
    "fusion": "fusion(%p), kind=kLoop, calls=%c{}",
    "loop": "while(%p), condition=%c{}, body=%c{}",
}


def program(levels: int, how: str, *, times: int) -> str:
    """Computations, each called so many times by the one before it."""
    text = "HloModule a, is_scheduled=true\n"
    for level in range(levels, 0, -1):
        inner = "copy(%p)" if level == levels else HOW[how].replace("{}", str(level + 1))
        ops = "".join(f"  %f{n} = f32[8]{{0}} {inner}\n" for n in range(times))
        text += f"\n%c{level} (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n{ops}}}\n"
    entry = HOW["call"].replace("{}", "1")
    return (
        f"{text}\nENTRY %m (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n"
        f"  ROOT %f = f32[8]{{0}} {entry}\n}}\n"
    )


@pytest.mark.parametrize(("how", "times"), [("call", 2), ("fusion", 2), ("loop", 1)])
def test_computations_that_are_called_exponentially_often(how: str, times: int) -> None:
    with pytest.raises(BadInput, match="call each other so often"):
        parse(program(40, how, times=times))


@pytest.mark.parametrize("how", ["call", "fusion"])
def test_computations_that_are_nested_too_deep_do_not_call_themselves(how: str) -> None:
    with pytest.raises(BadInput, match="nested 3,001 deep; programs of up to 100 can be read"):
        parse(program(3_000, how, times=1))


def test_computations_that_call_themselves() -> None:
    text = program(3, "fusion", times=1).replace("copy(%p)", "fusion(%p), calls=%c2")
    with pytest.raises(BadInput, match="its computations call themselves"):
        parse(text)


@pytest.mark.parametrize("how", ["call", "fusion"])
def test_what_can_be_followed_is_read(how: str) -> None:
    assert len(parse(program(99, how, times=1)).computations) == 100
    assert len(parse(program(8, how, times=2)).computations) == 9
