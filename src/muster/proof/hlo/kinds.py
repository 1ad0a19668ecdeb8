"""What an operation does: communicates, computes, moves, or only names memory.

A collective stands in a program in one of these forms:

    all-gather                              runs; nothing else does meanwhile
    all-gather-start ... all-gather-done    runs beside what stands between
    call-start ... call-done                the same, on another core (custom-call-start from
                                            libtpu 0.0.52 on)
    fusion that holds one                   the compiler merged it with a slice or a copy
    fusion that begins one, matmul fusions  runs beside the matmuls of the fusions between, which
    that carry it on, fusion that ends it   hold it too
    send and recv of the megascale runtime  runs between slices, over the data-center network
"""

import re

from muster.proof.hlo.known import (
    ASYNC_BEGINS,
    ASYNC_ENDS,
    COLLECTIVES,
    FREE,
    FREE_TARGETS,
    GPU_CONFIG,
    GPU_TARGET,
    PALLAS_TARGET,
    TRANSFERS,
)
from muster.proof.hlo.program import Computation, Op, Program

# Operations that others do the work of: what they call, or what started them.
_CONTROL = frozenset({"while", "conditional", "call", "async"})
_ELSEWHERE = frozenset({"async", "call", "custom-call"})  # bases of what other cores run
WRAPPERS = frozenset(f"{base}-start" for base in _ELSEWHERE)
MEGASCALE = '_xla_megascale_transfer_type="'
_CARRIED_ON = "async_collective_fusion_config"
_BLOCKS = re.compile(r"_block_(?:kv|q)(?:_[a-z]+)*[_=](?:\d|None).*")


def collective_inside(program: Program, op: Op) -> Op | None:
    """The collective that begins with an operation, which may be the operation itself.

    What carries one on or waits for one is none.
    """
    if op.phase in {"update", "done"}:
        return None
    if op.base in COLLECTIVES:  # a wrapped one may leave its groups to what it calls
        told = not {"replica_groups", "source_target_pairs"}.isdisjoint(op.attributes)
        return op if told else held_collective(program, op) or op
    if op.opcode == "send" and MEGASCALE in op.attributes.get("frontend_attributes", ""):
        return op
    if op.opcode not in WRAPPERS and (
        op.opcode != "fusion" or fusion_role(program, op) in {"carries", "ends"}
    ):
        return None
    return held_collective(program, op)


def held_collective(program: Program, op: Op) -> Op | None:
    """The first collective in what an operation calls."""
    for computation in program.called_by(op):
        for inner in computation.ops:
            if inner.base in COLLECTIVES:
                return inner
            if inner.opcode == "fusion" and (found := held_collective(program, inner)):
                return found
    return None


def fusion_role(program: Program, op: Op) -> str:
    """What a fusion does for a collective that runs beside fusions.

    Returns:
        "begins", "carries", "ends", or "" where it does nothing of the kind.
    """
    targets = {
        inner.custom_call_target
        for computation in program.called_by(op)
        for inner in computation.ops
        if inner.opcode == "custom-call"
    }
    if ASYNC_BEGINS in targets:
        return "begins"
    if ASYNC_ENDS in targets:
        return "ends"
    inner = held_collective(program, op) if op.opcode == "fusion" else None
    carried = inner is not None and _CARRIED_ON in inner.attributes.get("backend_config", "")
    return "carries" if carried else ""


def ends_collective(program: Program, op: Op) -> bool:
    """Whether an operation only waits for a collective that was started before."""
    if op.opcode == "fusion":
        return fusion_role(program, op) == "ends"
    return op.phase in {"update", "done"} and op.base in COLLECTIVES


def begins_elsewhere(op: Op) -> bool:
    """Whether another core is started."""
    return op.opcode in WRAPPERS


def feeds_elsewhere(op: Op) -> bool:
    """Whether another core, started before, gets what it works on."""
    return op.phase == "update" and op.base in _ELSEWHERE


def is_fed_later(computation: Computation, op: Op) -> bool:
    """Whether another core is started, and gets what it works on by an operation further on."""
    return (
        begins_elsewhere(op)
        and not op.operands
        and any(feeds_elsewhere(each) and each.operands[0] == op.name for each in computation.ops)
    )


def is_transfer(op: Op) -> bool:
    """Whether it exchanges data with the host, or over it with another slice."""
    return op.base in TRANSFERS


def is_pallas(op: Op) -> bool:
    """Whether it is a kernel written by hand, of which the compiler estimates nothing."""
    return op.opcode == "custom-call" and op.custom_call_target == PALLAS_TARGET


def kernel_name(op: Op) -> str:
    """A Pallas kernel's name: what its operation is called, without its number and its blocks.

    JAX wrote the sizes of splash attention's blocks into its name until it had a place for them.
    """
    name, _, number = op.name.rpartition(".")
    return without_blocks(name if name and number.isdigit() else op.name)


def without_blocks(name: str) -> str:
    """A kernel's name, or a scope's, without the sizes of blocks that follow it.

    >>> without_blocks("splash_mha_fwd_residuals_block_kv_512_block_kv_compute_512_q_layout_1")
    'splash_mha_fwd_residuals'
    >>> without_blocks("transformer_block_3")
    'transformer_block_3'
    """
    return _BLOCKS.sub("", name)


def gpu_part(program: Program) -> str:
    """What in a program only the compiler for GPUs writes; "" where nothing is.

    Targets come first: they are what a person knows.
    """
    said = ""
    for op in program.ops():
        if GPU_TARGET.match(op.custom_call_target):
            return f"custom call {op.custom_call_target}"
        if not said and (found := GPU_CONFIG.search(op.attributes.get("backend_config", ""))):
            said = f"{found.group(1)} of its operations"
    return said


def is_dma(op: Op) -> bool:
    """Whether it begins a copy between memories beside what computes."""
    return op.opcode in {"copy-start", "slice-start", "dynamic-slice-start"} or (
        op.opcode == "dynamic-update-slice-start"
    )


def is_free(op: Op) -> bool:
    """Whether an operation takes no time of its own, or none that counts.

    Numbers of loops and addresses are worked out by the scalar unit, beside everything else.
    """
    if op.opcode == "custom-call":
        return op.custom_call_target in FREE_TARGETS
    named = (
        op.opcode in FREE
        or op.opcode in WRAPPERS
        or op.base in _CONTROL
        or op.phase in {"update", "done"}
    )
    return named or is_transfer(op) or is_scalar(op)


def is_scalar(op: Op) -> bool:
    """Whether it makes at most one number, by itself."""
    return op.opcode not in {"fusion", "custom-call"} and not op.phase and op.shape.numbers <= 1
