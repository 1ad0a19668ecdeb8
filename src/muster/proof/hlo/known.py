"""The opcodes of HLO, and the custom calls of the TPU compiler that are understood."""

import re

# xla/hlo/ir/hlo_opcode.h
OPCODES = frozenset(
    """
    abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh
    async atan2 atanh batch-norm-grad batch-norm-inference batch-norm-training bitcast
    bitcast-convert broadcast call cbrt ceil cholesky clamp collective-broadcast
    collective-permute compare complex concatenate conditional constant convert convolution copy
    copy-done copy-start cosh cosine count-leading-zeros custom-call divide domain dot
    dynamic-reshape dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft
    floor fusion gather get-dimension-size get-tuple-element imag infeed iota is-finite log
    log-plus-one logistic map maximum minimum multiply negate not opt-barrier optimization-barrier
    or outfeed pad parameter partition-id popcnt power ragged-all-to-all ragged-dot real recv
    recv-done reduce reduce-precision reduce-scatter reduce-window remainder replica-id reshape
    reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even
    rsqrt scaled-dot scan scatter select select-and-scatter send send-done set-dimension-size
    shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
    """.split()  # noqa: SIM905 - 120 quoted names would be harder to read
)
COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
TRANSFERS = frozenset({"send", "recv", "infeed", "outfeed"})
# They move or compute nothing: they name memory, or state what is known of a value.
FREE_TARGETS = frozenset(
    {
        "AllocateBuffer",
        "AssumeGatherIndicesInBound",
        "ConcatBitcast",
        "SliceId",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
    }
)
PALLAS_TARGET = "tpu_custom_call"
# Inside fusions: where a collective begins and ends that runs beside the matmuls in between.
ASYNC_BEGINS, ASYNC_ENDS = "AsyncCollectiveStart", "AsyncCollectiveDone"
# Understood, and not free: a crop of an array's padding.
COSTED_TARGETS = frozenset({"ZeroCrop"})
# Operations that take no time on a TPU: names of other operations' memory.
FREE = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "optimization-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)


# What GPU programs call, and what the back end for GPUs writes of its operations.
GPU_TARGET = re.compile(
    r"_*(cu(blas|dnn|solver|sparse|fft|b\W|_)|gpu\W|triton|mosaic_gpu|hip|miopen)"
)
GPU_CONFIG = re.compile(
    r'"(gemm_backend_config|triton_gemm_config|fusion_backend_config|cudnn_\w+_config'
    r'|operation_queue_id|wait_on_operation_queues)\\?"'
)


def is_known_opcode(opcode: str) -> bool:
    """Whether HLO has it, or its asynchronous start, update or done."""
    if opcode in OPCODES:
        return True
    for phase in ("-start", "-update", "-done"):
        if opcode.endswith(phase):
            return opcode.removesuffix(phase) in OPCODES
    return False


def is_known_target(target: str) -> bool:
    """Whether a custom call's target is understood."""
    named = {PALLAS_TARGET, ASYNC_BEGINS, ASYNC_ENDS}
    return target in FREE_TARGETS or target in COSTED_TARGETS or target in named
