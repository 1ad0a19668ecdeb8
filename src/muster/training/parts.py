"""Where a weight's gradient is cut, so that its parts are scattered over all links of a torus.

A reduce-scatter over n axes of a TPU's torus goes round all of them at once, in 2 n orders and
directions, where the tiles of a row divide into 2 n equal parts; else it goes round one ring of all
chips, which takes up to n times as long. And where the number of tiles has a large prime factor the
compiler sums the whole gradient on every chip, which takes twice the bytes. LLaMA-3's d_ff has 112
or 224 tiles, its vocabulary 1002 = 6 x 167: over three axes, 4096 x 128256 in bfloat16 on 64 chips
of v5p takes 14.9 ms whole and 2.5 ms in two parts, by the reading of the compiled program.
"""

from collections.abc import Iterator

TILE = 128  # columns
# By compiling 2 p and 3 p tiles for v5p (libtpu 0.0.50.1): 97 is scattered, 113 is not.
LARGEST_PRIME = 97


def parts(columns: int, axes: int) -> tuple[int, ...]:
    """Widths of the parts of a gradient's columns, which sum to them; one where no cut helps.

    Args:
        columns: of the gradient, beside the dim that is scattered.
        axes: physical axes of the torus that a scatter goes over at once.

    >>> parts(28672, 3), parts(28672, 2), parts(128256, 3), parts(1024, 3), parts(100, 3)
    ((28416, 256), (28672,), (127488, 768), (768, 256), (100,))
    """
    ways = 2 * axes
    for tiles in range(columns // TILE // ways * ways, 0, -ways) if ways else ():
        if _largest_prime(tiles) <= LARGEST_PRIME:
            rest = columns - tiles * TILE
            return (tiles * TILE, rest) if rest else (columns,)
    return (columns,)


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
