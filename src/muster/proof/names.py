"""What an operation is, in the words of the model that it was compiled from.

    jit(train_step)/transpose(jvp())/while/body/checkpoint/btd,df->btf/dot_general
                    backward         in the layers         the matmul

Everything that is differentiated has `jvp` in its name, and backwards `transpose`; what is computed
again, `rematted_computation`. What has neither and stands in no loop is the parameters' update.
"""

import re

from muster.proof.hlo.kinds import MEGASCALE, is_pallas, kernel_name, without_blocks
from muster.proof.hlo.known import COLLECTIVES
from muster.proof.hlo.program import Computation, Op, Program

# Words of JAX's own that say nothing about the model.
_MACHINERY = re.compile(
    r"(jit|pjit|jvp|vmap|transpose|checkpoint|remat|shard_map|custom_vjp|custom_jvp)\(.*\)"
    r"|while|body|cond|eval_jaxpr|checkpoint|shard_map|rematted_computation|closed_call|remat"
    r"|core_call|custom_jvp_call|custom_vjp_call|pallas_call|branch_\d+_fun"
)
_MATMULS = {"convolution", "dot"}
_MOST_WORDS = 3
_HELPERS = ("matmul.py:",)  # that multiply for whoever calls them
_TRACED = ("jit(", "pjit(", "pmap(")
_FARTHEST = 32


def direction(op_name: str) -> str:
    """forward, backward, recompute or update; "" where the name does not tell.

    >>> direction("jit(f)/transpose(jvp())/checkpoint/rematted_computation/mul")
    'recompute'
    >>> direction("jit(f)/jvp(M)/dot_general"), direction("jit(f)/mul")
    ('forward', 'update')
    """
    if not op_name.startswith(_TRACED):
        return ""
    if "rematted_computation" in op_name:
        return "recompute"
    if "transpose(" in op_name:
        return "backward"
    # The layers' loop holds nothing of the update; what is not differentiated has no `jvp`.
    return "forward" if "jvp(" in op_name or "/while" in op_name else "update"


def words(op_name: str) -> str:
    """The last words of a name that are the model's.

    >>> words("jit(f)/jvp()/while/body/eval_jaxpr/btd,df->btf/dot_general")
    'btd,df->btf/dot_general'
    """
    plain = op_name.replace("\\'", "'")
    parts = [part for part in plain.split("/") if part and not _MACHINERY.fullmatch(part)]
    return "/".join(map(without_blocks, parts[-_MOST_WORDS:]))


def main_op(program: Program, op: Op) -> Op:
    """The operation inside a fusion that it is there for: its matmul, or else itself."""
    found = _inside(program, op, _MATMULS) if op.opcode == "fusion" else None
    return found or op


def label(
    program: Program, op: Op, computation: Computation | None = None, around: str = ""
) -> str:
    """One line: direction, where, what and the function of the model that asked for it.

    Args:
        program: that it is of.
        op: the operation.
        computation: where it stands: what has no name of its own is named after what it reads.
        around: the name of the loop around it, for what does not say where it belongs.
    """
    main = main_op(program, op)
    name = main.op_name or program.op_name(op)
    if not name and (held := _inside(program, op, COLLECTIVES)):
        name = held.op_name
    what, function = words(name), _function(program, main)
    if is_pallas(op):
        what, function = kernel_name(op), ""
    elif not name and computation is not None:
        source = _named_source(program, computation, op)
        called = _called(op)
        if words(source):
            name, what = source, f"{called} of {words(source)}"
        else:  # nothing that the model names, such as zeros
            what = called
    elif op.opcode == "copy" and what:  # named after what it moves, which it is not
        what = f"copy of {what}"
    where = name if name.startswith(_TRACED) else around
    parts = [
        direction(where),
        "layers" if "/while" in where else "",
        what or op.base,
        f"({function})" if function else "",
    ]
    return " ".join(part for part in parts if part)


def _function(program: Program, op: Op) -> str:
    """The innermost function that asked for an operation and is no helper of others."""
    stack = program.frames.get(op.frame) or (program.source(op),)
    own = (frame for frame in stack if not frame.startswith(_HELPERS))
    return next(own, stack[0]).partition(" ")[2].split(".<locals>")[0]


def _called(op: Op) -> str:
    """What to call an operation that the model does not name."""
    said = op.attributes.get("frontend_attributes", "")
    if MEGASCALE not in said:
        return op.base
    kind = said.partition(MEGASCALE)[2].partition('"')[0]
    return f"{kind.lower().replace('_', '-')} between slices"


def _named_source(program: Program, computation: Computation, op: Op) -> str:
    """The name of the nearest operation with one that an operation's input comes from."""
    waiting, seen = list(op.operands), {op.name}
    while waiting and len(seen) < _FARTHEST:
        name = waiting.pop(0)
        source = computation.by_name.get(name)
        if source is None or name in seen:
            continue
        seen.add(name)
        if found := program.op_name(source):
            return found
        waiting += source.operands
    return ""


def _inside(program: Program, op: Op, opcodes: frozenset[str] | set[str]) -> Op | None:
    for computation in program.called_by(op):
        for inner in computation.ops:
            if inner.base in opcodes:
                return inner
            if inner.opcode == "fusion" and (found := _inside(program, inner, opcodes)):
                return found
    return None
