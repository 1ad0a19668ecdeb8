"""A set-up -> the predicted seconds of its step: which of the step-time model's programs ran.

    software and date            program
    xla                          XLA
    megatron                     Megatron-LM with sequence parallelism (since 2022-05)
      without it                 Megatron-LM of 2021: collectives that nothing hides
      BLOOM's                    the same under DeepSpeed's pipeline; embedding and head count as
                                 layers where the notes call the embedding balanced
      SimuMax's                  Megatron-LM, with a matmul rate of its own
      fully sharded, DeepSpeed   ZeRO-3 of 2021
    torch                        FSDP, eager; compiled where the notes name torch.compile

Kernels: unfused, by Megatron or as XLA's dot products; the flash-attn that PyTorch ships; on TPUs
before 7x, Pallas' backward pass in two kernels unless the row says `fused bwd`; flash otherwise. A
stated power limit lowers the clock with the cube root of power.

Logits, which only memory asks for: llm-foundry's default loss is flash-attn's, which works in half
precision with its own derivative (2 + 2 bytes a logit); MaxText's `vocab tiling n` takes the loss
in n parts.
"""

import re
from dataclasses import replace

from muster.hardware import Cluster
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import RematPolicy
from muster.roofline.software import (
    DEEPSPEED,
    DOT_PRODUCT,
    FLASH,
    FLASH_ATTN,
    MEGATRON,
    MEGATRON_2021,
    MEGATRON_DEEPSPEED,
    SIMUMAX,
    TORCH,
    TORCH_COMPILED,
    TWO_KERNELS,
    UNFUSED,
    XLA,
    AttentionKernel,
    Software,
)
from muster.roofline.step_time import StepTime, predict_step
from muster.validation.setup import Setup

FUSED_LOSS_BYTES = 4.0
FULL_POWER_WATTS = 700.0  # H100 SXM, the only chip that a row limits
_TWO_KERNEL_CHIPS = {"v2", "v3", "v4", "v5e", "v5p", "v6e"}


def predict_setup(setup: Setup) -> float:
    """Predicted seconds of one step."""
    return step_time(setup).total


def step_time(setup: Setup) -> StepTime:
    """The predicted step, term by term."""
    return predict_step(
        setup.architecture,
        cluster_of(setup),
        setup.workload,
        setup.layout,
        remat=policy_of(setup),
        attention=kernel_of(setup),
        software=software_of(setup),
    )


def software_of(setup: Setup) -> Software:
    """The program that ran."""
    deepspeed = "deepspeed" in setup.run.optimizer.lower()
    if deepspeed and setup.layout.fsdp > 1:
        return DEEPSPEED
    match setup.software:
        case "xla":
            tiling = re.search(r"vocab tiling (\d{1,4})\b", setup.run.notes.lower())
            parts = max(1, int(tiling[1])) if tiling else 1
            logit_bytes = XLA.logit_bytes / parts
            return replace(XLA, sequence_sharded=setup.sequence_parallel, logit_bytes=logit_bytes)
        case "torch":
            if setup.run.source_group == "llm-foundry":
                return replace(TORCH, logit_bytes=FUSED_LOSS_BYTES)
            return TORCH_COMPILED if "compile" in setup.run.notes.lower() else TORCH
        case "megatron":
            return _megatron(setup, deepspeed=deepspeed)


def _megatron(setup: Setup, *, deepspeed: bool) -> Software:
    if setup.run.source_group == "simumax":
        return SIMUMAX
    if setup.sequence_parallel:
        return MEGATRON
    if not deepspeed:
        return MEGATRON_2021
    balanced = "balanced" in setup.run.notes.lower()
    return replace(MEGATRON_DEEPSPEED, counts_ends=balanced)


def kernel_of(setup: Setup) -> AttentionKernel:
    """The attention kernel that ran."""
    words = setup.run.attention_kernel.lower()
    if setup.attention == "unfused":
        return DOT_PRODUCT if setup.software == "xla" else UNFUSED
    if setup.software == "torch":
        return FLASH_ATTN
    if setup.cluster.chip.id in _TWO_KERNEL_CHIPS and "fused bwd" not in words:
        return TWO_KERNELS
    return FLASH


def policy_of(setup: Setup) -> RematPolicy:
    """What ran again."""
    remat = setup.remat
    return RematPolicy(
        name=remat.raw[:40] or "none",
        rerun=remat.rerun,
        elementwise=remat.policy is not Remat.NONE,
        offloaded=remat.offloaded,
        layers_share=remat.layers_share,
    )


def cluster_of(setup: Setup) -> Cluster:
    """The cluster, its chips as fast as their power limit lets them be."""
    cluster, chip = setup.cluster, setup.cluster.chip
    if not setup.power_watts:
        return cluster
    clock = min(1.0, setup.power_watts / FULL_POWER_WATTS) ** (1 / 3)
    limited = replace(
        chip, peak_flops={name: peak * clock for name, peak in chip.peak_flops.items()}
    )
    return replace(cluster, slice=replace(cluster.slice, chip=limited))
