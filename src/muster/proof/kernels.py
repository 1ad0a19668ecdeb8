"""What a Pallas kernel computes and moves, from the shapes that it is given.

The compiler estimates nothing of a kernel written by hand. Of those that are known by name,

    splash attention   matmuls * 2 B N T S H * (n + 1) / 2n      n blocks of a causal sequence
                       2 matmuls forward (scores, values); 3 for dQ; 4 for dK and dV; 5 fused
    grouped matmul     2 M K N      every row meets one expert

A kernel that states its cost is believed; any other moves what it reads and writes once.

Legend: B batch, N query heads, T queries, S keys, H head_dim.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.proof.hlo.kinds import kernel_name
from muster.proof.hlo.program import Computation, Op
from muster.proof.hlo.shape import VMEM, Shape

_BLOCK = re.compile(r'\\?"block_(?:q|kv)\\?": (\d+)')
_FLOAT = {"bf16", "f32", "f16"}
_MATMULS = {"dkv": 4, "dq": 3, "fwd": 2}
_FUSED_BACKWARD = 5


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a kernel does in one run.

    Attributes:
        flops: multiplications and additions of its matmuls.
        hbm_bytes: read from and written to HBM.
        from_what: how that is known, for whoever reads it.
        attention: whether its matmuls are those of attention, with a softmax between.
    """

    flops: float
    hbm_bytes: float
    from_what: str
    attention: bool = False


def work_of(op: Op, computation: Computation) -> Work:
    """What a Pallas kernel does."""
    reads = [computation.by_name[name].shape for name in op.operands if name in computation.by_name]
    moved = float(sum(map(_hbm, reads)) + _hbm(op.shape))
    stated = (op.backend.get("custom_call_config") or {}).get("cost_estimate")
    name = kernel_name(op).lower()
    attends = "splash" in name or "flash" in name or "attention" in name
    if isinstance(stated, Mapping) and stated.get("flops"):
        return Work(
            flops=float(stated["flops"]),
            hbm_bytes=float(stated.get("bytes_accessed", moved)),
            from_what="its own estimate",
            attention=attends,
        )
    if attends:
        flops = _attention_flops(name, op, reads)
        if flops:
            return Work(
                flops=flops, hbm_bytes=moved, from_what="the shapes, causal", attention=True
            )
    if "gmm" in name:
        return Work(flops=_grouped_flops(op, reads), hbm_bytes=moved, from_what="a grouped matmul")
    return Work(flops=0.0, hbm_bytes=moved, from_what="its bytes alone")


def _hbm(shape: Shape) -> int:
    return sum(each.padded_bytes for each in shape.arrays() if each.memory_space != VMEM)


def _attention_flops(name: str, op: Op, reads: Sequence[Shape]) -> float:
    arrays = [shape for shape in reads if shape.dtype in _FLOAT and len(shape.dims) > 2]
    if len(arrays) < 2:
        return 0.0
    q, k = arrays[0], arrays[1]
    matmuls = next((number for part, number in _MATMULS.items() if part in name), 2)
    if matmuls == _MATMULS["dkv"] and len(op.shape.elements) > 2:
        matmuls = _FUSED_BACKWARD
    *outer, T, H = q.dims
    S = k.dims[-2]
    blocks = [int(size) for size in _BLOCK.findall(op.attributes.get("frontend_attributes", ""))]
    count = max(1, T // max(blocks)) if blocks else 1
    causal = (count + 1) / (2 * count) if blocks and T == S else 1.0
    return matmuls * 2.0 * math.prod(outer) * T * S * H * causal


def _grouped_flops(op: Op, reads: Sequence[Shape]) -> float:
    """Of rows [M, K] and experts [E, K, N]; backwards of [K, M] and [M, N]: 2 M K N either way."""
    arrays = [shape for shape in reads if shape.dtype in _FLOAT]
    if len(arrays) < 2:
        return 0.0
    rows, other = arrays[0], arrays[1]
    inner = math.prod(rows.dims)
    out = next(op.shape.arrays())
    return 2.0 * inner * (other.dims[-1] if len(other.dims) > 2 else out.dims[-1])
