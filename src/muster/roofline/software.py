"""Who writes the training step: what its programs compute again, hide and shard.

    xla        a compiler schedules one program (JAX): fused elementwise work, collectives that run
               beside the matmuls, nothing computed again that no one reads
    megatron   Megatron-LM and NeMo: tensor parallelism by hand, ZeRO-1, pipelines
    torch      PyTorch FSDP: eager layers, whole layers gathered ahead and computed again whole
    compiled   the same with torch.compile, which fuses elementwise work
    deepspeed  ZeRO-3 of 2021: weights gathered one parameter at a time

The attention kernel is said apart: a fused one (flash, splash, cuDNN) works through the causal half
and keeps no scores; an unfused one multiplies all T x T scores and moves them through HBM.
"""

from dataclasses import dataclass, replace
from typing import Literal

from muster.hardware import Chip

type SoftwareName = Literal[
    "xla", "megatron", "megatron-deepspeed", "simumax", "torch", "compiled", "deepspeed"
]


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """How softmax attention is computed.

    Attributes:
        fused: whether scores stay on chip.
        backward_matmuls: matmuls of the backward pass for each of the forward's two; a fused
            kernel computes the scores a second time (5 against 2; arXiv:2205.14135, section 3.1).
        forward_score_bytes: bytes that move through HBM for each score, forward.
        backward_score_bytes: the same, backward.
    """

    name: str
    fused: bool = True
    backward_matmuls: float = 2.5
    forward_score_bytes: float = 0.0
    backward_score_bytes: float = 0.0


FLASH = AttentionKernel(name="flash")
# FlashAttention 1 and 2 as PyTorch ships them: not written for Hopper's tensor cores.
FLASH_ATTN = AttentionKernel(name="flash-attn")
# Two backward kernels, for dQ and for dK and dV, each computing scores and dP: 7 products.
TWO_KERNELS = AttentionKernel(name="flash", backward_matmuls=3.5)
# Half precision: scores written; softmax reads and writes; dropout reads, writes and writes a byte
# of mask; the product with V reads: 13 B. Backward: dP written; dropout's and softmax's derivatives
# read 5 and write 4; dQ, dK and dV read 6: 19 B. Korthikanti et al. (arXiv:2205.05198, section 4.1)
# keep the same tensors.
UNFUSED = AttentionKernel(
    name="unfused",
    fused=False,
    backward_matmuls=2.0,
    forward_score_bytes=13.0,
    backward_score_bytes=19.0,
)


@dataclass(frozen=True, kw_only=True)
class Software:
    """Attributes of the program that trains.

    Attributes:
        name: the fitted efficiencies are kept by it.
        whole_layer: recomputation runs a layer again whole, also what nothing reads.
        sequence_sharded: activations between blocks are split over the tensor ways.
        shards_replicas: the sequence and expert ways also shard the dense weights, as FSDP's do.
        blocking: chips wait for their collectives; nothing hides.
        deepspeed: DeepSpeed's pipeline and ZeRO-1: every tensor-parallel chip sends all of the
            activations to the next stage, not its share; a stage keeps what it sent, and one
            microbatch more; gradients stay beside their float32 sums or shards.
        accumulates_in_f32: every microbatch reads and writes float32 gradients.
        holds_in_pipeline: in a pipeline, a stage's weights are gathered once a step and stay so.
        counts_ends: whether embedding and head count as a layer each where a pipeline's layers do
            not divide: what Megatron-LM calls `account_for_embedding_in_pipeline_split`.
        reuses_buffers: whether buffers that are never alive together share their place. A caching
            allocator keeps what was freed: torchtitan's runs reserve the sum to within 1 %.
        logit_bytes: bytes that each logit takes with its loss and derivative: in half precision and
            in float32, both ways, are 12; 2 less where the float32 copy is worked on in place; 2
            where a compiler keeps them in half precision, computes the softmax beside them and
            writes the derivative in their place (XLA for v6e, compiled ahead of time: 2.0 bytes a
            logit for the loss of MaxText and T5X, 4.0 for a float32 product).
        own_loss: whether the loss is that of `muster.training.loss`, whose memory is
            `muster.roofline.loss_chunks`'s; `logit_bytes` then says nothing.
        keeps_products: whether an MLP's product of gate and up is ever kept for the backward pass.
            Else what stands between matmuls is computed as they read it, which takes no time.
        sums_apart: whether microbatches' gradients are added up in float32 arrays of their own,
            beside those of the microbatch at work.
    """

    name: SoftwareName
    whole_layer: bool = True
    sequence_sharded: bool = True
    shards_replicas: bool = True
    blocking: bool = False
    deepspeed: bool = False
    accumulates_in_f32: bool = True
    holds_in_pipeline: bool = False
    counts_ends: bool = False
    reuses_buffers: bool = False
    logit_bytes: float = 10.0
    own_loss: bool = False
    keeps_products: bool = True
    sums_apart: bool = False


XLA = Software(
    name="xla",
    whole_layer=False,
    accumulates_in_f32=False,
    reuses_buffers=True,
    logit_bytes=2.0,
)
MUSTER = replace(XLA, own_loss=True, keeps_products=False, sums_apart=True)
MEGATRON = Software(name="megatron", shards_replicas=False, counts_ends=True)
# Megatron as SimuMax's authors ran it on 8 B200; its matmuls have a rate of their own.
SIMUMAX = replace(MEGATRON, name="simumax")
MEGATRON_2021 = Software(
    name="megatron", shards_replicas=False, sequence_sharded=False, blocking=True
)
MEGATRON_DEEPSPEED = Software(
    name="megatron-deepspeed",
    shards_replicas=False,
    sequence_sharded=False,
    blocking=True,
    deepspeed=True,
)
# XLA's unfused attention, no dropout: scores and probabilities written and read in half precision.
DOT_PRODUCT = AttentionKernel(
    name="unfused",
    fused=False,
    backward_matmuls=2.0,
    forward_score_bytes=8.0,
    backward_score_bytes=12.0,
)

TORCH = Software(name="torch", holds_in_pipeline=True, logit_bytes=12.0)
TORCH_COMPILED = Software(name="compiled", holds_in_pipeline=True, logit_bytes=12.0)
DEEPSPEED = Software(name="deepspeed")


def default_software(chip: Chip) -> Software:
    """What a plan is for: muster's own step on TPUs and CPUs, Megatron on GPUs."""
    return MEGATRON if chip.kind == "gpu" else MUSTER


def default_attention(chip: Chip) -> AttentionKernel:
    """The attention kernel that most people use on a chip: a fused one, but on TPU v2 and v3.

    No published run on those has one; with XLA's dot products v4's rates reach what was measured
    on v3 (data/efficiencies.toml, `kin`).
    """
    return DOT_PRODUCT if chip.id in {"v2", "v3"} else FLASH
