import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import BadInput
from muster.proof.hlo import parse_shape
from muster.proof.hlo.shape import HOST, VMEM


def test_an_array() -> None:
    shape = parse_shape("bf16[8,2048,4096]{2,1,0:T(8,128)(2,1)S(1)}")
    assert (shape.dtype, shape.dims, shape.minor_to_major) == ("bf16", (8, 2048, 4096), (2, 1, 0))
    assert shape.tiles == ((8, 128), (2, 1))
    assert shape.memory_space == VMEM
    assert shape.bytes == shape.padded_bytes == 8 * 2048 * 4096 * 2


@pytest.mark.parametrize(
    ("text", "bytes_", "padded"),
    [
        ("f32[]", 4, 4),
        ("pred[3]{0}", 3, 3),
        ("f32[4,100]{1,0:T(8,128)}", 1600, 8 * 128 * 4),
        ("f32[4,100]{0,1:T(8,128)}", 1600, 104 * 128 * 4),  # the first dim is the fastest here
        ("bf16[1,4096]{1,0:T(2,128)(2,1)}", 8192, 16384),
        ("s4[10]{0:E(4)}", 5, 5),
        ("f32[5]{0:T(256)}", 20, 1024),
        ("token[]", 0, 0),
        ("(f32[2]{0}, (s32[], bf16[3]{0}))", 8 + 4 + 6, 8 + 4 + 6),
        ("()", 0, 0),
        ("f32[<=8,2]{1,0}", 64, 64),
    ],
)
def test_bytes(text: str, bytes_: int, padded: int) -> None:
    shape = parse_shape(text)
    assert (shape.bytes, shape.padded_bytes) == (bytes_, padded)


def test_a_tuple_with_comments() -> None:
    shape = parse_shape("(f32[2]{0}, /*index=1*/u32[]{:S(2)}, f32[2]{0:S(5)})")
    assert [each.memory_space for each in shape.elements] == [0, 2, HOST]
    assert str(shape) == "(f32[2], u32[], f32[2])"


@pytest.mark.parametrize("text", ["", "f32", "f32[2", "%x", "f32[2] extra"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="not a shape"):
        parse_shape(text)


@pytest.mark.parametrize(
    "text",
    [
        f"f32[{'9' * 400}]",
        f"f32[{'9' * 5000}]",
        "f32[" + "9999999999," * 40 + "2]",
        f"f32[0,{'9' * 19},{'9' * 19}]",
        f"what[{'9' * 400}]",
        f"f32[2,2]{{1,0:T({'9' * 400},{'9' * 400})}}",
        f"f32[2]{{0:E({'9' * 400})}}",
    ],
)
def test_an_array_larger_than_any_memory_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is larger than any memory"):
        parse_shape(text)


def test_bytes_are_exact() -> None:
    assert parse_shape(f"s8[{2**59 + 1}]").bytes == 2**59 + 1


def test_tuples_in_tuples_end_somewhere() -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        parse_shape("(" * 500 + ")" * 500)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.sampled_from(["f32", "bf16"]))
def test_padding_never_loses_numbers_and_fills_whole_tiles(dims: list[int], dtype: str) -> None:
    order = ",".join(str(dim) for dim in reversed(range(len(dims))))
    tile = "T(8,128)" if len(dims) > 1 else "T(1024)"
    shape = parse_shape(f"{dtype}[{','.join(map(str, dims))}]{{{order}:{tile}}}")
    width = {"f32": 4, "bf16": 2}[dtype]
    assert shape.bytes == math.prod(dims) * width
    assert shape.padded_bytes >= shape.bytes
    assert shape.padded_bytes % (1024 * width) == 0
