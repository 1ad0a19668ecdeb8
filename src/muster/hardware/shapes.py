"""Shapes of TPU slices: which are legal, which wrap around, which a chip count stands for.

A shape is chips along each dim of the torus, ascending: (16, 20, 28). Generations with 3-D tori
(v4, v5p, 7x) are built of 4x4x4 cubes joined by optical switches, so a slice is whole cubes or one
of a few shapes inside a cube; generations with 2-D tori have a closed list of shapes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Shape = tuple[int, ...]

CUBE = 4
CHIPS_PER_CUBE = CUBE**3
WRAP_LENGTH_2D = 16


@dataclass(frozen=True, kw_only=True)
class SliceRule:
    """Which slices a vendor sells of one TPU generation, and what their names count.

    Attributes:
        dims: dims of the torus, 2 or 3.
        listed: legal shapes: all of them for a 2-D torus, those below one cube for a 3-D one.
        max_cubes: 4x4x4 cubes in a pod; 0 for a 2-D torus.
        longest_dim: most chips along one dim of a slice made of cubes.
        documented: the shapes that the vendor's own table prints.
        max_pod_shape: the whole pod.
        max_schedulable_shape: the largest slice that can be asked for.
        max_multislice_chips: the largest documented job of several slices; 0 where none is.
        wrap: which dims wrap around.
        several_shapes: what a name that fits several shapes means.
        type_prefix: how accelerator types begin: "v5litepod" of v5litepod-64.
        type_units_per_chip: what one chip adds to the number in an accelerator type: 2 where the
            number counts the TensorCores of a two-core chip, 1 where it counts chips.
        least_type_chips: chips of the smallest accelerator type.
        twisted: whether nxnx2n and nx2nx2n may be twisted tori.
        rule: the rule of legal shapes in one sentence.
        wrap_rule: the rule of wraparound in one sentence.
        sources: ids of the sources of all this.
    """

    dims: int
    listed: tuple[Shape, ...]
    max_cubes: int
    longest_dim: int
    documented: tuple[Shape, ...]
    max_pod_shape: Shape
    max_schedulable_shape: Shape
    max_multislice_chips: int
    wrap: Literal["multiples of 4", "length 16", "full pod"]
    several_shapes: Literal["most cube-like", "ask"]
    type_prefix: str
    type_units_per_chip: int
    least_type_chips: int
    twisted: bool
    rule: str
    wrap_rule: str
    sources: tuple[str, ...]


def parse_shape(text: str) -> Shape:
    """Read a shape.

    >>> parse_shape("16x20x28")
    (16, 20, 28)
    """
    return tuple(int(dim) for dim in text.split("x"))


def format_shape(shape: Shape) -> str:
    """Print a shape.

    >>> format_shape((16, 20, 28))
    '16x20x28'
    """
    return "x".join(str(dim) for dim in shape)


def is_legal(rule: SliceRule, shape: Shape) -> bool:
    """Whether a shape can be a slice of the pod."""
    if shape in rule.listed:
        return True
    return (
        rule.dims == 3
        and len(shape) == 3
        and all(dim >= CUBE and dim % CUBE == 0 for dim in shape)
        and list(shape) == sorted(shape)
        and shape[-1] <= rule.longest_dim
        and math.prod(shape) <= rule.max_cubes * CHIPS_PER_CUBE
    )


@lru_cache(maxsize=64)
def shapes_with(rule: SliceRule, chips: int) -> tuple[Shape, ...]:
    """All legal shapes of `chips` chips, the most cube-like first."""
    listed = [shape for shape in rule.listed if math.prod(shape) == chips]
    cubes, rest = divmod(chips, CHIPS_PER_CUBE)
    whole = _cuboids(rule, cubes) if not rest and 0 < cubes <= rule.max_cubes else ()
    return tuple(sorted({*listed, *whole}, key=lambda shape: (sum(shape), shape)))


@lru_cache(maxsize=16)
def legal_shapes(rule: SliceRule) -> tuple[Shape, ...]:
    """Every legal shape, by size."""
    whole = (shape for cubes in range(1, rule.max_cubes + 1) for shape in _cuboids(rule, cubes))
    return tuple(sorted({*rule.listed, *whole}, key=lambda shape: (math.prod(shape), shape)))


def _cuboids(rule: SliceRule, cubes: int) -> Iterator[Shape]:
    for a in range(1, cubes + 1):
        if a**3 > cubes:
            return
        if cubes % a:
            continue
        for b in range(a, math.isqrt(cubes // a) + 1):
            c, rest = divmod(cubes // a, b)
            if not rest and c * CUBE <= rule.longest_dim:
                yield (a * CUBE, b * CUBE, c * CUBE)


def default_shape(rule: SliceRule, chips: int) -> Shape | None:
    """The shape that an accelerator type of `chips` chips means; None where it is none or several.

    Google's default for v4 and v5p is the topology most like a cube (docs, TPU types and
    topologies); of equal volumes that is the one with the smallest sum of dims. 7x has no default.
    """
    shapes = shapes_with(rule, chips)
    if len(shapes) == 1 or (shapes and rule.several_shapes == "most cube-like"):
        return shapes[0]
    return None


def wraparound(rule: SliceRule, shape: Shape) -> tuple[bool, ...]:
    """Which dims of the slice are rings rather than lines."""
    match rule.wrap:
        case "multiples of 4":
            return (all(dim % CUBE == 0 for dim in shape),) * len(shape)
        case "length 16":
            return tuple(dim == WRAP_LENGTH_2D for dim in shape)
        case "full pod":
            return (shape == rule.max_pod_shape,) * len(shape)


def can_twist(rule: SliceRule, shape: Shape) -> bool:
    """Whether the slice may be a twisted torus: n x n x 2n or n x 2n x 2n, n a multiple of 4."""
    if not rule.twisted or len(shape) != 3 or shape[0] % CUBE:
        return False
    n = shape[0]
    return shape in {(n, n, 2 * n), (n, 2 * n, 2 * n)}


def nearest_shapes(rule: SliceRule, shape: Shape, *, count: int = 2) -> tuple[Shape, ...]:
    """The legal shapes most like an illegal one: in size, and dim by dim from the largest down."""
    wanted = sorted(shape, reverse=True)

    def distance(legal: Shape) -> float:
        ratios = [math.prod(legal) / math.prod(shape)]
        ratios += [a / b for a, b in zip(sorted(legal, reverse=True), wanted, strict=False)]
        return sum(abs(math.log(ratio)) for ratio in ratios)

    nearest = sorted(legal_shapes(rule), key=distance)[:count]
    return tuple(sorted(nearest, key=lambda legal: (math.prod(legal), legal)))


def nearest_counts(rule: SliceRule, chips: int) -> tuple[int, ...]:
    """The largest legal chip count below `chips` and the smallest above, where they exist."""
    counts = sorted({math.prod(shape) for shape in legal_shapes(rule)})
    below = [count for count in counts if count <= chips][-1:]
    above = [count for count in counts if count > chips][:1]
    return (*below, *above)
