"""Shapes as HLO prints them: format, dims, layout, tiles, memory space.

    bf16[8,2048,4096]{2,1,0:T(8,128)(2,1)S(1)}
         dims         minor to major; tiles; memory space

A TPU holds the two minor dims in tiles of 8 x 128 numbers; a second tile (2,1) packs two bf16 rows
into one word. A dim that does not fill its last tile is padded to it: `padded_bytes`.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from muster.errors import BadInput, shorten

# Bits of one number; formats of several bits a byte are packed in memory.
BITS = {
    "pred": 8,
    "s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64,
    "u1": 1, "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64,
    "f16": 16, "f32": 32, "f64": 64, "bf16": 16, "c64": 64, "c128": 128,
    "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8,
    "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "token": 0, "opaque": 0,
}  # fmt: skip
# Memory spaces by the number after S; HBM where none is printed.
HBM, VMEM, SYNC_FLAGS, HOST = 0, 1, 2, 5
# No device's memory, and no host's, holds an array of this many bytes.
_LARGEST, _MOST_DIGITS = 2**60, 19
_TILED = 2**60  # numbers of all tiles of a layout, one inside the other: far more than any has
_DEEPEST = 64  # tuples in tuples

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = re.compile(r"E\((\d+)\)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """An array, or a tuple of shapes.

    Attributes:
        dtype: number format as HLO calls it; "tuple" for a tuple.
        dims: sizes of an array's dims, major first as written.
        minor_to_major: order of the dims in memory, the fastest first.
        tiles: of the minor dims, the outer tile first.
        memory_space: 0 HBM, 1 VMEM, 2 synchronization flags, 5 the host's memory.
        elements: of a tuple.
        bits: of one number.
    """

    dtype: str
    dims: tuple[int, ...] = ()
    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = HBM
    elements: tuple["Shape", ...] = ()
    bits: int = 0

    @property
    def is_tuple(self) -> bool:
        """Whether it holds other shapes."""
        return self.dtype == "tuple"

    @property
    def numbers(self) -> int:
        """Numbers of an array; of a tuple, those of all its arrays."""
        return sum(e.numbers for e in self.elements) if self.is_tuple else math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes without padding; of a tuple, of all its arrays."""
        if self.is_tuple:
            return sum(element.bytes for element in self.elements)
        return -(-self.numbers * self.bits // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory, the minor dims rounded up to whole tiles."""
        if self.is_tuple:
            return sum(element.padded_bytes for element in self.elements)
        if not self.tiles or not self.dims:
            return self.bytes
        order = self.minor_to_major or tuple(reversed(range(len(self.dims))))
        sizes = [self.dims[dim] for dim in order]
        tile = list(reversed(self.tiles[0]))  # minor first
        while len(sizes) < len(tile):
            sizes.append(1)
        for place, size in enumerate(tile):
            if size > 0:
                sizes[place] = -(-sizes[place] // size) * size
        return -(-math.prod(sizes) * self.bits // 8)

    def arrays(self) -> Iterator["Shape"]:
        """Itself, or every array inside the tuple."""
        if not self.is_tuple:
            yield self
        for element in self.elements:
            yield from element.arrays()

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape:
    """Read a shape.

    Raises:
        ValueError: it is none.

    >>> shape = parse_shape("bf16[4,100]{1,0:T(8,128)(2,1)S(1)}")
    >>> str(shape), shape.bytes, shape.padded_bytes, shape.memory_space
    ('bf16[4,100]', 800, 2048, 1)
    """
    shape, end = shape_at(text.strip(), 0)
    if text.strip()[end:].strip():
        raise ValueError(f"not a shape: {text[:80]!r}")
    return shape


def shape_at(text: str, start: int) -> tuple[Shape, int]:
    """The shape that begins at `start`, and where it ends.

    Raises:
        ValueError: none begins there.
        BadInput: one that cannot be.
    """
    return _shape_at(text, start, 0)


def _shape_at(text: str, start: int, deep: int) -> tuple[Shape, int]:
    if text.startswith("(", start):
        return _tuple_at(text, start, deep)
    match = _ARRAY.match(text, start)
    if match is None:
        raise ValueError(f"not a shape: {text[start : start + 80]!r}")
    return _array(*match.groups()), match.end()


@lru_cache(maxsize=65536)
def _array(dtype: str, dims: str, layout: str | None) -> Shape:
    order, _, rest = (layout or "").partition(":")
    bits = _BITS.search(rest)
    tiles = _TILES.search(rest)
    space = _SPACE.search(rest)
    sizes = [dim.strip().lstrip("<=") for dim in dims.split(",")]  # <= bounds a dynamic dim
    if any(len(size) > _MOST_DIGITS and size.isdecimal() for size in sizes):
        raise _too_large(dtype, dims)
    known = tuple(int(size) for size in sizes if size.isdecimal())
    minor = tuple(int(dim) for dim in order.split(",") if dim.strip().isdecimal())
    if sorted(minor) != list(range(len(minor))) or len(minor) > len(known):
        shown = shorten(f"{dtype}[{dims}]{{{order}}}")
        raise BadInput(f"not an HLO program: the layout of {shown} does not order its dims")
    shape = Shape(
        dtype=dtype,
        dims=known,
        minor_to_major=minor,
        tiles=tuple(
            tuple(int(size) if size.isdigit() else -1 for size in tile.split(","))
            for tile in (tiles.group(1)[1:-1].split(")(") if tiles else ())
        ),
        memory_space=int(space.group(1)) if space else HBM,
        bits=int(bits.group(1)) if bits else BITS.get(dtype, 0),
    )
    if not _can_be(shape):
        raise _too_large(dtype, dims)
    return shape


def _can_be(shape: Shape) -> bool:
    """Whether a memory could hold an array, dims of none counted as one, and its tiles."""
    held = max(1, shape.bits)
    for size in (*shape.dims, *(size for tile in shape.tiles for size in tile)):
        held *= max(1, size)
        if held > 8 * _LARGEST * _TILED:
            return False
    return math.prod(max(1, size) for size in shape.dims) * shape.bits <= 8 * _LARGEST


def _too_large(dtype: str, dims: str) -> BadInput:
    shown = shorten(f"{dtype}[{dims}]")
    return BadInput(f"not an HLO program: the array {shown} is larger than any memory")


def _tuple_at(text: str, start: int, deep: int) -> tuple[Shape, int]:
    if deep == _DEEPEST:
        raise ValueError(f"tuples are nested deeper than {_DEEPEST}")
    elements: list[Shape] = []
    place = start + 1
    while True:
        place = _skip(text, place)
        if text.startswith(")", place):
            return Shape(dtype="tuple", elements=tuple(elements)), place + 1
        element, place = _shape_at(text, place, deep + 1)
        elements.append(element)


def _skip(text: str, place: int) -> int:
    while place < len(text):
        if text[place] in " ,\n":
            place += 1
        elif comment := _COMMENT.match(text, place):
            place = comment.end()
        else:
            break
    return place
