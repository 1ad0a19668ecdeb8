"""Where a weight's gradient is cut, so that its parts are scattered over all links of a torus.

A reduce-scatter over n axes of a TPU's torus goes round all of them at once, in 2 n orders and
directions, where the tiles of a row divide into 2 n equal parts; else it goes round one ring of all
chips, which takes up to n times as long. And some numbers of tiles the compiler does not scatter at
all: it sums the whole gradient on every chip, which takes twice the bytes. LLaMA-3's d_ff has 112
or 224 tiles, its vocabulary 1002 = 6 x 167: over three axes, 4096 x 128256 in bfloat16 on 64 chips
of v5p takes 14.9 ms whole and 2.5 ms in two parts, by the reading of the compiled program.

Which numbers are scattered was found by compiling them (libtpu 0.0.50.1; docs/tuning-log.md).
"""

from collections.abc import Iterator

TILE = 128  # columns
# Among up to so many chips: every number without a large prime factor; 97 is scattered, 113 not.
# Among 128 devices (64 chips of v7x) 996 = 12 x 83 is not, though among 64 it is.
FEW_CHIPS = 64
LARGEST_PRIME = 97
# Among 512 chips, over two axes and over three: what is left of a number without its factors of 2.
# Not scattered are 15, 21, 29, 31, 51, 61, 63, 105, 111.
ODD_FACTORS = frozenset({1, 3, 5, 7, 9, 11, 13, 27, 33, 39, 81, 99})
WORTH_A_CUT = 32  # tiles


def parts(columns: int, *, axes: int, chips: int) -> tuple[int, ...]:
    """Widths of the parts of a gradient's columns, which sum to them; one where no cut helps.

    Args:
        columns: of the gradient, beside the dim that is scattered.
        axes: physical axes of the torus that a scatter goes over at once.
        chips: among which it scatters.

    >>> parts(28672, axes=3, chips=64), parts(128256, axes=3, chips=64)
    ((28416, 256), (127488, 768))
    >>> parts(28672, axes=3, chips=512), parts(128256, axes=2, chips=256)
    ((27648, 1024), (114688, 13312, 256))
    >>> parts(28672, axes=2, chips=64), parts(100, axes=3, chips=64)
    ((28672,), (100,))
    """
    ways = 2 * axes
    for tiles in range(columns // TILE // ways * ways, 0, -ways) if ways else ():
        if is_scattered(tiles, chips):
            rest = columns - tiles * TILE
            if rest < WORTH_A_CUT * TILE:
                return (tiles * TILE, rest) if rest else (columns,)
            return (tiles * TILE, *parts(rest, axes=axes, chips=chips))
    return (columns,)


def is_scattered(tiles: int, chips: int) -> bool:
    """Whether rows of so many tiles are scattered among so many chips, not summed on all."""
    if chips > FEW_CHIPS:
        return tiles // (tiles & -tiles) in ODD_FACTORS
    return _largest_prime(tiles) <= LARGEST_PRIME


def ranges(widths: tuple[int, ...]) -> Iterator[slice]:
    """The columns of each part."""
    begun = 0
    for width in widths:
        yield slice(begun, begun + width)
        begun += width


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while number > 1:
        while number % factor == 0:
            largest, number = factor, number // factor
        factor += 1
    return largest
