"""The free text of a run: software, number formats, optimizer, attention kernel.

Every reader says what it took for granted, as a remark, and answers None only where a guess would
change the prediction's meaning.
"""

import re
from dataclasses import dataclass
from typing import Literal

from muster.validation.runs import Run

type Software = Literal["xla", "megatron", "torch"]
type Precision = Literal["f32", "bf16", "f16", "f8", "f4", "int8"]
type AttentionKernel = Literal["fused", "unfused"]

# Who wrote the step: the compiler (xla), Megatron's modules (megatron), or plain PyTorch with FSDP.
_BY_GROUP: dict[str, Software] = {
    "maxtext": "xla",
    "tpu-recipes": "xla",
    "axlearn": "xla",
    "paxml": "xla",
    "levanter": "xla",
    "jax-toolbox": "xla",
    "megatron-lm": "megatron",
    "megatron-bridge": "megatron",
    "nemo": "megatron",
    "bloom": "megatron",
    "vtrain": "megatron",
    "simumax": "megatron",
    "internevo": "megatron",
    "nanotron": "megatron",
    "llm-foundry": "torch",
    "torchtitan": "torch",
    "fms-fsdp": "torch",
}
_WITHOUT_SEQUENCE_PARALLEL = {"bloom", "vtrain"}
_FIRST_SEQUENCE_PARALLEL = "2022-05"  # Korthikanti et al., arXiv:2205.05198


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Number formats of one run, in the names of `roofline.memory`.

    Attributes:
        compute: what the matmuls take.
        parameters: how the trained parameters are kept.
        gathered: in what format parameters travel between chips.
        reduced: in what format gradients are summed between chips.
        master_copy: whether the optimizer keeps float32 parameters beside the trained ones.
        moments: of the optimizer.
    """

    compute: Precision
    parameters: str
    gathered: str
    reduced: str
    master_copy: bool
    moments: str = "f32"


def read_software(run: Run) -> Software:
    """Whose training step ran.

    >>> read_software(Run(id="a", hardware="v5p", model="m", source_group="new"))
    'xla'
    """
    text = f"{run.source} {run.notes} {run.optimizer} {run.attention_kernel}".lower()
    if re.search(r"\bjax\b|maxtext|\bpax\b|axlearn|levanter|flax", text):
        return "xla"
    if re.fullmatch(r"(tpu[ -]?)?v\d+\w*|tpu.*|ironwood|trillium", run.hardware.strip().lower()):
        return "xla" if not run.hardware.lower().startswith("v100") else "megatron"
    if "cudnn_flash_te" in text:  # MaxText's name of the kernel
        return "xla"
    if run.source_group in _BY_GROUP:
        return _BY_GROUP[run.source_group]
    if "megatron" in text or "nemo" in text or "zero-1" in text or "distributed" in text:
        return "megatron"
    return "torch" if "fsdp" in text or (run.fsdp or 1) > 1 else "megatron"


def read_formats(run: Run, software: Software) -> Formats | None:
    """Number formats; None where the compute format is not understood."""
    compute = read_precision(run.compute_dtype)
    if compute is None:
        return None
    weights = run.weight_dtype.lower()
    half = "f16" if compute == "f16" else "bf16"
    master = "master" in weights and not weights.startswith(("fp32", "f32", "float32"))
    if software == "megatron" and not weights.startswith(("fp32", "f32", "float32")):
        master = True  # Megatron's mixed precision always keeps one
    pure = re.match(r"(bf16|bfloat16|f16|fp16|float16|half)", weights)
    parameters = half if master or pure else "f32"
    gathered = half
    reduced = half
    if software == "megatron":
        # Megatron sums gradients in float32 with bf16; its fp16 optimizer of 2021 in fp16.
        reduced = "f16" if half == "f16" and "fp32 grad" not in weights else "f32"
    elif software == "torch" and parameters == "f32" and run.source_group != "fms-fsdp":
        # FSDP2's usual policy, and composer's DEFAULT of 2023 (get_mixed_precision): parameters
        # travel in bf16, gradients in float32. PURE rows keep and move everything in bf16;
        # fms-fsdp (its policies/mixed_precision.py) reduces in bf16.
        reduced = "f32"
    return Formats(
        compute=compute,
        parameters=parameters,
        gathered=gathered,
        reduced=reduced,
        master_copy=master,
        moments="f32",
    )


def read_precision(text: str) -> Precision | None:
    """The format of the matmuls.

    >>> read_precision("fp8 (TE)"), read_precision("nvfp4"), read_precision("bf16 (TE)")
    ('f8', 'f4', 'bf16')
    """
    low = text.lower()
    if not low:
        return None
    patterns: tuple[tuple[str, Precision], ...] = (
        (r"fp4|float4|\bf4\b", "f4"),
        (r"fp8|float8|\bf8\b|e4m3|e5m2", "f8"),
        (r"int8|\baqt\b|w8a8", "int8"),
        (r"bf16|bfloat16", "bf16"),
        (r"fp16|float16|\bf16\b|half", "f16"),
        (r"fp32|float32|\bf32\b|tf32", "f32"),
    )
    return next((name for pattern, name in patterns if re.search(pattern, low)), None)


def read_attention(run: Run) -> tuple[AttentionKernel, str]:
    """The kernel, and a remark where it was taken for granted."""
    low = run.attention_kernel.lower()
    if re.search(r"no flash|unfused|dot_product|dot product|eager|naive|\bmath\b", low):
        return "unfused", ""
    if re.search(r"flash|splash|\bte\b|cudnn|sdpa|pallas|\bfa\d?\b|mem.?efficient|xformers", low):
        return "fused", ""
    if not low and run.source_group == "vtrain":
        return "unfused", "attention kernel not stated: Megatron-LM of 2022-23 had no flash kernel"
    said = f"{low!r} not known" if low else "not stated"
    return "fused", f"attention kernel {said}: taken as a fused one"


def read_sequence_parallel(run: Run, software: Software) -> bool:
    """Whether activations between blocks are split over the tensor ways (Megatron's name)."""
    notes = run.notes.lower()
    if re.search(r"no sequence.parallel|without sequence.parallel", notes):
        return False
    if re.search(r"sequence.parallel", notes):
        return True
    if software == "megatron":
        if run.source_group in _WITHOUT_SEQUENCE_PARALLEL:
            return False
        return not run.date or run.date >= _FIRST_SEQUENCE_PARALLEL
    return True


def narrow_moments(run: Run) -> str:
    """A remark where the row keeps first moments in half precision; blank elsewhere.

    >>> narrow_moments(Run(id="a", hardware="v7x", model="m", optimizer="adamw, mu bf16"))
    'first moments in bf16: counted as float32, 2 bytes a parameter too many'
    """
    if re.search(r"\b(mu|first moments?)\b[^,;]*\b(bf16|bfloat16|fp16)\b", run.optimizer.lower()):
        return "first moments in bf16: counted as float32, 2 bytes a parameter too many"
    return ""


_OPTIMIZERS = r"adam|lion|sgd|lamb|muon|shampoo|sophia|adafactor|zero|distributed|fsdp"


def knows_optimizer(run: Run) -> bool:
    """Whether the optimizer is one that there is; not to state it is allowed."""
    return not run.optimizer or re.search(_OPTIMIZERS, run.optimizer.lower()) is not None


def read_optimizer_ways(run: Run, data_ways: int) -> tuple[int, str]:
    """Over how many chips one replica's optimizer state is sharded, and a remark.

    ZeRO-1 ("distributed") shards over all data-parallel ranks, plain Adam not at all.

    >>> read_optimizer_ways(Run(id="a", hardware="h100", model="m", optimizer="Adam, ZeRO-0"), 8)
    (1, '')
    """
    low = run.optimizer.lower()
    hybrid = re.search(r"hybrid.*?over (\d+)", low)
    if hybrid:
        return min(data_ways, max(1, int(hybrid[1]))), ""
    if re.search(r"no zero|zero-?0|zero stage 0", f"{low} {run.notes.lower()}"):
        return 1, ""
    if re.search(r"zero-?[123]|distributed|fsdp", low):
        return data_ways, ""
    return 1, "" if low else "optimizer not stated: plain Adam"
