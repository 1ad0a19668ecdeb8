"""How long one matmul takes: its FLOPs as the matrix unit sees them.

    systolic (TPU)   2 * ceil8(M) * ceil(K, d) * ceil(N, d) / (peak * efficiency), d = 128 or 256
    tiled (GPU)      waves * SMs * tile FLOPs / (peak * efficiency), waves = ceil(tiles / SMs),
                     for the best of a few tile shapes

each at least the time that its operands take through HBM. Sources: the book's Part 2 ("How to Think
About TPUs", padding to the MXU) and Part 12 ("What's in a GPU?", SMs and their tensor cores);
NVIDIA's "Matrix Multiplication Background User's Guide" (tile and wave quantization, and tiles of
256 x 128 as the most efficient).

Legend: M rows (tokens), K contracted, N columns.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from muster.hardware import Chip

ROWS = 8  # sublanes of a TPU vector register: rows are padded to this
OPERAND_BYTES = 2
# (rows, columns, rate against the best): smaller tiles read their operands more often.
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (128, 64, 0.80), (64, 64, 0.6))
# Streaming multiprocessors; a fact of the part, from NVIDIA's architecture white papers.
SM_COUNT = {
    "a100": 108, "a100-40": 108, "h100": 132, "h100-pcie": 114, "h800": 132, "h200": 132,
    "b200": 148, "gb200": 152, "b300": 160, "gb300": 160,
    "mi300x": 304, "mi325x": 304, "mi355x": 256,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MatrixUnit:
    """What multiplies matrices on one chip.

    Attributes:
        flops: FLOP/s that a large matmul reaches: peak times efficiency.
        side: rows and columns of the systolic array that dims are padded to; 1 for GPUs.
        processors: streaming multiprocessors that tiles are dealt to; 0 for TPUs.
        hbm_bandwidth: bytes/s that operands come in with.
    """

    flops: float
    side: int
    processors: int
    hbm_bandwidth: float

    def seconds(self, M: float, K: float, N: float) -> float:
        """Time of [M, K] times [K, N].

        >>> unit = MatrixUnit(flops=1e12, side=128, processors=0, hbm_bandwidth=1e12)
        >>> unit.seconds(1024, 100, 128) == unit.seconds(1024, 128, 128)
        True
        """
        if self.processors:
            flops = 2.0 * K * whole_waves(M, N, self.processors)
        else:
            flops = 2.0 * _up(M, ROWS) * _up(K, self.side) * _up(N, self.side)
        moved = OPERAND_BYTES * (M * K + K * N + M * N)
        return max(flops / self.flops, moved / self.hbm_bandwidth)

    def training_seconds(self, M: float, K: float, N: float) -> tuple[float, float]:
        """Forward; and backward: derivatives of input [M, N] [N, K] and weight [K, M] [M, N]."""
        if not self.processors:
            forward = self.seconds(M, K, N)
            return forward, 2 * forward
        return self.seconds(M, K, N), self.seconds(M, N, K) + self.seconds(K, M, N)


@lru_cache(maxsize=1 << 16)
def whole_waves(M: float, N: float, processors: int) -> float:
    """M * N as a GPU computes it, in whole waves of tiles; the same few sizes come up all the time.

    >>> whole_waves(256, 128 * 108, 108) == 256 * 128 * 108
    True
    """
    best = math.inf
    for rows, columns, rate in TILES:
        tiles = math.ceil(M / rows) * math.ceil(N / columns)
        waves = math.ceil(tiles / processors)
        best = min(best, waves * processors * rows * columns / rate)
    return best


def matrix_unit(chip: Chip, efficiency: float, *, dtype: str = "bf16") -> MatrixUnit:
    """A chip's matrix unit at a share of its peak."""
    side = chip.fact("core.mxu_dim")
    return MatrixUnit(
        flops=chip.peak_flops.get(dtype, chip.bf16_flops) * efficiency,
        side=int(side.value) if side and isinstance(side.value, int | float) else 1,
        processors=SM_COUNT.get(chip.id, 128) if chip.kind == "gpu" else 0,
        hbm_bandwidth=chip.hbm_bandwidth,
    )


def _up(size: float, to: int) -> float:
    return math.ceil(size / to) * to
