"""How long the main core takes for an operation.

From the compiler's estimate, bounded by what its schedules take, or else from shapes.
"""

import math
from collections import Counter
from dataclasses import dataclass

from muster.proof.costs import COMPUTE, GUESSED, KERNEL
from muster.proof.hlo.flops import factors_of, matmul_flops_of
from muster.proof.hlo.kinds import is_pallas, kernel_name
from muster.proof.hlo.program import Computation, Op, Program
from muster.proof.hlo.shape import HBM, HOST, VMEM, Shape
from muster.proof.kernels import Work, attention_seconds, work_of
from muster.proof.rates import Rates

# What a matmul's schedule leaves of the matrix unit, where nothing but its own loop holds it back:
# 0.92 (v6e), 0.96 (v5p), 0.965 (v5e) of 8192 x 8192 x 8192, 0.985 (v6e, 98304 KiB of VMEM) of
# 12288 x 5120 x 32768; bundles that the compiler of libtpu 0.0.52 scheduled, from no run.
MATMUL_SHARE = 0.95
MOVE_SHARE = 0.55  # of HBM bandwidth that an operation which only moves numbers reaches
# Operations that move numbers, or add them up on their way.
MOVES = frozenset(
    {"copy", "transpose", "reshape", "slice", "dynamic-slice", "pad", "concatenate", "broadcast"}
    | {"reverse", "reduce"}
)
INT8 = frozenset({"s8", "u8"})
NARROW = frozenset({"s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Duration:
    """Of one run of an operation.

    Attributes:
        kind: COMPUTE, KERNEL or GUESSED.
        note: what it was timed from, where that is worth telling.
    """

    seconds: float
    kind: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Of the operations of one program on one device."""

    program: Program
    rates: Rates

    def of(self, computation: Computation, op: Op) -> Duration:
        """What the main core takes for an operation of a computation."""
        cycles = op.estimated_cycles
        if is_pallas(op):
            work = work_of(op, computation)
            seconds = max(self._kernel_computes(work), work.hbm_bytes / self.rates.hbm)
            note = f"kernel {kernel_name(op)}: timed from {work.from_what}"
            return Duration(seconds=seconds, kind=KERNEL, note=note)
        if cycles is not None:
            estimate = cycles / self.rates.clock
            bounds = self._matmul(computation, op), self._moves(computation, op)
            return Duration(seconds=min(estimate, *bounds), kind=COMPUTE)
        seconds = self._made_twice(computation, op) / self.rates.hbm
        note = f"{op.opcode} without an estimate: timed from its bytes"
        return Duration(seconds=seconds, kind=GUESSED, note=note)

    def _kernel_computes(self, work: Work) -> float:
        """Seconds of the matrix and vector units for a kernel."""
        if not work.attention or not work.head_dim:
            return work.flops / self.rates.matmul_flops
        return attention_seconds(
            work,
            matmul_peak=self.rates.peak_flops,
            vector_rate=self.rates.vector_ops,
            matrix_unit=self.rates.matrix_unit,
        )

    def _matmul(self, computation: Computation, op: Op) -> float:
        """Seconds of a matmul as its schedule runs: a bound on the compiler's earlier estimate.

            max(FLOPs / (0.95 peak), bytes / HBM bandwidth)

        FLOPs of whole tiles of the matrix unit (heads of 128 fill half of one of 256).
        `estimated_cycles` is guessed before the loop is scheduled, to choose its window. Where
        windows are small it guesses a third too much (v6e, 8192 x 8192 x 8192: 2.98 million
        cycles, of which the schedule needs 2.28); see MATMUL_SHARE. Factors that are both of 8-bit
        integers have a peak of their own. Infinite where an operation holds no matmul, or one of
        other narrow numbers.
        """
        tile = self.rates.matrix_unit
        flops = matmul_flops_of(self.program, op, computation, tile=tile)
        factors = factors_of(self.program, op, computation)
        peak = self.rates.peak_flops
        if factors and factors <= INT8:
            peak = self.rates.int8_flops
        elif factors & NARROW:
            peak = 0.0
        if not flops or not peak:
            return math.inf
        return max(flops / (MATMUL_SHARE * peak), self._moved(computation, op) / self.rates.hbm)

    def _moves(self, computation: Computation, op: Op) -> float:
        """Seconds of an operation that only moves numbers: a bound on the compiler's estimate.

            (bytes read + bytes written) / (0.55 HBM bandwidth)

        0.55 is what the compiler itself takes elementwise fusions to reach of HBM. Of what stands
        alone, in no fusion, it guesses several times that, and schedules less than the traffic
        takes. In thousands of cycles, of v6e and libtpu 0.0.52, bf16, as it guessed, as scheduled
        (bundles of the pipelined loop, six buffers deep, times its rounds), and by the formula:

            sum of 4 arrays of 268 MB         16,977      864    2,607
            zeros, 2.1 GB                     24,216      746    4,172
            padding, 537 MB to 940 MB         11,524      445    2,868
            slice of whole rows, to 403 MB     4,971      137    1,564
            slice from lane 1 on, to 268 MB    3,314      260    1,043
            sums over 8,192 lanes, 537 MB      6,054      311    1,043

        On v5p it guesses as much too much. Of v5e, to transpose a tile of 128 rows and 640 columns
        of a gathered weight, 9,696 cycles, of which 380 are scheduled; by the formula 1,093.
        Infinite for what computes, and for what moves mostly within VMEM or over to the host.
        """
        bytes_in: Counter[int] = Counter()
        for array in self._touched(computation, op):
            bytes_in[array.memory_space] += array.padded_bytes
        if op.opcode not in MOVES or bytes_in[HOST] or bytes_in[VMEM] > bytes_in[HBM]:
            return math.inf
        of_a_part = op.opcode in {"slice", "dynamic-slice"}
        moved = 2.0 * op.shape.padded_bytes if of_a_part else self._moved(computation, op)
        return moved / (MOVE_SHARE * self.rates.hbm)

    def _moved(self, computation: Computation, op: Op) -> float:
        """Bytes of HBM that an operation reads and writes, every array once."""
        arrays = self._touched(computation, op)
        return float(sum(array.padded_bytes for array in arrays if array.memory_space != VMEM))

    def _touched(self, computation: Computation, op: Op) -> list[Shape]:
        """The arrays that an operation reads and makes."""
        by_name = computation.by_name
        shapes = [by_name[name].shape for name in op.operands if name in by_name]
        return [array for shape in (*shapes, op.shape) for array in shape.arrays()]

    def _made_twice(self, computation: Computation, op: Op) -> float:
        """Bytes that an operation reads and writes, taken to be twice what it makes."""
        made = op.shape.padded_bytes
        if op.opcode == "dynamic-update-slice" and op.operands[1] in computation.by_name:
            made = computation.by_name[op.operands[1]].shape.padded_bytes  # in place
        return 2.0 * made
