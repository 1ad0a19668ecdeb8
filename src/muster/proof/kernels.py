"""What a Pallas kernel computes and moves, from the shapes that it is given.

The compiler estimates nothing of a kernel written by hand. Of those that are known by name,

    splash attention   matmuls * 2 B N T S H * (n + 1) / 2n      n blocks of a causal sequence
                       2 matmuls forward (scores, values); 3 for dQ; 4 for dK and dV; 5 fused
    grouped matmul     2 M K N      every row meets one expert

A windowed kernel's grid holds the blocks near the diagonal alone: its first operand has a number
for each block of the grid, so scores are those blocks' where they are fewer than the square's.

A kernel that states its cost is believed; any other moves what it reads and writes once.

How long attention takes: a matrix unit of d x d works on whole tiles, so every matmul of a head of
H numbers costs as one of H rounded up to d; on one of 256 a head of 128 leaves half of it idle. The
softmax stands between matmuls that need each other, and hides behind them but in part:

    F H' / H / peak + b V / (4 * 1024 * clock * cores)        H' = d ceil(H / d)
    b = 12 forward, 5 backward

F FLOPs, V scores, a vector unit of 1024 lanes with four ALUs each (the book's Part 2). b is from no
run: it is read from the loops that the compiler of libtpu 0.0.52 schedules for splash attention
with segments (bundles of a pair of blocks, --xla_jf_dump_llo_text, with what opens and closes a row
of blocks):

    chip, H, block      forward        dQ            dK, dV        fused backward
    v5e, 256, 512       2780, 2816     3440, 3392    4580, 4416
    v5e, 128, 512       1640, 1792     1910, 1856    2450, 2368
    v6e, 128, 512       1230, 1280     1340, 1088    1690, 1344
    v6e, 128, 2048     20700, 20480                               23600, 25600

read and by the formula, in cycles; a core of v5p is as one of v5e.

Legend: B batch, N query heads, T queries, S keys, H head_dim.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.proof.hlo.kinds import kernel_name
from muster.proof.hlo.program import Computation, Op
from muster.proof.hlo.shape import VMEM, Shape

_BLOCK = re.compile(r'\\?"(block_(?:q|kv)(?:_dkv|_dq)?)\\?": (\d+)')
_BLOCK_IN_NAME = re.compile(r"_(block_(?:q|kv)(?:_dkv|_dq)?)_(\d+)")
_FLOAT = {"bf16", "f32", "f16"}
MOST_STATED = 1e21  # FLOPs or bytes: days of the quickest chip
_MATMULS = {"dkv": 4, "dq": 3, "fwd": 2}
_FORWARD = 2
_FUSED_BACKWARD = 5
_SOFTMAX_OPS = {True: 12.0, False: 5.0}  # of the vector unit for a score, forward or not


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a kernel does in one run.

    Attributes:
        flops: multiplications and additions of its matmuls.
        hbm_bytes: read from and written to HBM.
        from_what: how that is known, for whoever reads it.
        attention: whether its matmuls are those of attention, with a softmax between.
        head_dim: H of attention; 0 where it is not known.
        scores: that attention computes.
        forward: whether that is the forward pass.
    """

    flops: float
    hbm_bytes: float
    from_what: str
    attention: bool = False
    head_dim: int = 0
    scores: float = 0.0
    forward: bool = True


def attention_seconds(
    work: Work, *, matmul_peak: float, vector_rate: float, matrix_unit: int
) -> float:
    """Seconds of the matrix and vector units for attention; the module says how.

    Args:
        work: of a kernel that attends.
        matmul_peak: FLOP/s of one device.
        vector_rate: operations/s of its vector units.
        matrix_unit: numbers along a side of the matrix unit.

    >>> work = Work(flops=1e12, hbm_bytes=0.0, from_what="", head_dim=128, scores=1e9)
    >>> round(attention_seconds(work, matmul_peak=1e14, vector_rate=1e13, matrix_unit=256), 6)
    0.0212
    """
    padded = matrix_unit * math.ceil(work.head_dim / matrix_unit) / work.head_dim
    matmuls = work.flops * padded / matmul_peak
    return matmuls + _SOFTMAX_OPS[work.forward] * work.scores / vector_rate


def work_of(op: Op, computation: Computation) -> Work:
    """What a Pallas kernel does."""
    reads = [computation.by_name[name].shape for name in op.operands if name in computation.by_name]
    moved = float(sum(map(_hbm, reads)) + _hbm(op.shape))
    stated = (op.backend.get("custom_call_config") or {}).get("cost_estimate")
    name = kernel_name(op).lower()
    attends = "splash" in name or "flash" in name or "attention" in name
    if isinstance(stated, Mapping) and (flops := _believable(stated.get("flops"))):
        return Work(
            flops=flops,
            hbm_bytes=_believable(stated.get("bytes_accessed")) or moved,
            from_what="its own estimate",
            attention=attends,
        )
    if attends and (attention := _attention(name, op, reads, moved)) is not None:
        return attention
    if "gmm" in name:
        return Work(flops=_grouped_flops(op, reads), hbm_bytes=moved, from_what="a grouped matmul")
    return Work(flops=0.0, hbm_bytes=moved, from_what="its bytes alone")


def _believable(stated: object) -> float:
    """A number that a kernel states of one run of its; 0 for what can be none.

    >>> _believable("2e12"), _believable(-3), _believable("nan"), _believable(None)
    (2000000000000.0, 0.0, 0.0, 0.0)
    """
    try:
        number = float(str(stated))
    except ValueError:
        return 0.0
    return number if 0 < number < MOST_STATED else 0.0


def _hbm(shape: Shape) -> int:
    return sum(each.padded_bytes for each in shape.arrays() if each.memory_space != VMEM)


def _attention(name: str, op: Op, reads: Sequence[Shape], moved: float) -> Work | None:
    arrays = [shape for shape in reads if shape.dtype in _FLOAT and len(shape.dims) > 2]
    if len(arrays) < 2:
        return None
    q, k = arrays[0], arrays[1]
    matmuls = next((number for part, number in _MATMULS.items() if part in name), _FORWARD)
    # One that makes dQ too; what it accumulates in VMEM may be among its results, of fewer dims.
    if matmuls == _MATMULS["dkv"] and _as_deep(op.shape, k) > 2:
        matmuls = _FUSED_BACKWARD
    *outer, T, H = q.dims
    S = k.dims[-2]
    blocks = _blocks(op)
    count = max(1, S // max(blocks.values())) if blocks else 1
    # Under context parallelism a chip has its share of the rows of a longer causal square.
    share = (count + 1) / (2 * count) if blocks and S % T == 0 else 1.0
    ending = next((f"_{part}" for part in ("dkv", "dq") if part in name), "")
    rows, columns = (blocks.get(f"block_{of}{ending}", 0) for of in ("q", "kv"))
    listed = reads[0].dtype not in _FLOAT and len(reads[0].dims) > 1
    grid = math.prod(reads[0].dims[1:]) if listed else 0
    windowed = 0 < grid * rows * columns < T * S
    if windowed:
        share = min(share, grid * rows * columns / (T * S))
    scores = math.prod(outer) * T * S * share
    return Work(
        flops=matmuls * 2.0 * scores * H,
        hbm_bytes=moved,
        from_what="the shapes, causal" + ", in a window" * windowed,
        attention=True,
        head_dim=H,
        scores=scores,
        forward=matmuls == _FORWARD,
    )


def _as_deep(shape: Shape, other: Shape) -> int:
    """How many of a result's arrays have at least as many dims as another array."""
    return sum(len(array.dims) >= len(other.dims) for array in shape.arrays())


def _blocks(op: Op) -> dict[str, int]:
    """The sizes of a splash kernel's blocks, by their names: block_q, block_kv_dkv."""
    found = _BLOCK.findall(op.attributes.get("frontend_attributes", ""))
    found = found or _BLOCK_IN_NAME.findall(op.name)
    return {name: int(size) for name, size in found}


def _grouped_flops(op: Op, reads: Sequence[Shape]) -> float:
    """Of rows [M, K] and experts [E, K, N]; backwards of [K, M] and [M, N]: 2 M K N either way."""
    arrays = [shape for shape in reads if shape.dtype in _FLOAT]
    if len(arrays) < 2:
        return 0.0
    rows, other = arrays[0], arrays[1]
    inner = math.prod(rows.dims)
    out = next(op.shape.arrays(), other)
    return 2.0 * inner * (other.dims[-1] if len(other.dims) > 2 else out.dims[-1])
