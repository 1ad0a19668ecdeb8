"""Words of sources that were seen, and variants that were not."""

import pytest

from muster.roofline.remat import Remat
from muster.validation.clusters import chip_id
from muster.validation.remat_text import MATMULS, read_remat
from muster.validation.runs import Run
from muster.validation.texts import (
    read_attention,
    read_optimizer_ways,
    read_precision,
    read_software,
)

QKV = {"query", "key", "value"}


@pytest.mark.parametrize(
    ("words", "policy", "rerun", "offloaded"),
    [
        ("", Remat.NONE, set(), set()),
        ("none", Remat.NONE, set(), set()),
        ("none (FSDP; activation offload on some layers)", Remat.NONE, set(), {"input"}),
        ("full (every layer)", Remat.FULL, set(MATMULS) - {"down"}, set()),
        ("Full recompute", Remat.FULL, set(MATMULS) - {"down"}, set()),
        ("SAVE_NOTHING (full)", Remat.FULL, set(MATMULS) - {"down"}, set()),
        ("minimal", Remat.MINIMAL, {"mixing"}, set()),
        ("minimal_with_context", Remat.MINIMAL, set(), set()),
        ("qkv_proj_offloaded", Remat.FULL, {"mixing", "out", "gate", "up"}, QKV),
        ("save_dot_except_mlp", Remat.OUTPUTS, {"mixing", "gate", "up"}, set()),
        ("core_attn", Remat.NONE, {"mixing"}, set()),
        ("selective (core attention)", Remat.NONE, {"mixing"}, set()),
        ("custom(q/k/v/out=device)", Remat.OUTPUTS, {"mixing", "gate", "up"}, set()),
        (
            "custom(decoder_layer_input=offload, mlpwo=offload, k/v proj=device)",
            Remat.FULL,
            {"query", "mixing", "out", "gate", "up"},
            {"input", "down"},
        ),
        (
            "custom(decoder_layer_input=device, context=device, mlpwi=offload)",
            Remat.OUTPUTS,
            QKV | {"out"},
            {"gate", "up"},
        ),
    ],
)
def test_remat(words: str, policy: Remat, rerun: set[str], offloaded: set[str]) -> None:
    choice = read_remat(words, xla=True)
    assert choice is not None
    assert choice.policy is policy
    assert set(choice.rerun) == rerun
    assert set(choice.offloaded) == offloaded


@pytest.mark.parametrize("words", ["magic", "custom(magic=device)", "custom(context=moon)"])
def test_remat_that_is_not_understood(words: str) -> None:
    assert read_remat(words, xla=True) is None


def test_only_compilers_drop_the_last_matmul() -> None:
    eager = read_remat("full", xla=False)
    assert eager is not None
    assert "down" in eager.rerun


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("bf16", "bf16"),
        ("BFloat16", "bf16"),
        ("fp16", "f16"),
        ("fp8 rowwise", "f8"),
        ("mxfp8", "f8"),
        ("MXFP4", "f4"),
        ("int8 (AQT)", "int8"),
        ("fp8 (fine-grained) + bf16", "f8"),
        ("", None),
        ("posit", None),
    ],
)
def test_precision(words: str, precision: str | None) -> None:
    assert read_precision(words) == precision


@pytest.mark.parametrize(
    ("words", "kernel", "certain"),
    [
        ("FlashAttention-3", "fused", True),
        ("unfused softmax", "unfused", True),
        ("fused softmax (no flash)", "unfused", True),
        ("dot_product", "unfused", True),
        ("", "fused", False),
        ("ring of fire", "fused", False),
    ],
)
def test_attention(words: str, kernel: str, certain: bool) -> None:
    found, remark = read_attention(Run(id="a", hardware="h100", model="m", attention_kernel=words))
    assert (found, remark == "") == (kernel, certain)


@pytest.mark.parametrize(
    ("run", "software"),
    [
        (Run(id="a", hardware="TPU v5e", model="m"), "xla"),
        (Run(id="a", hardware="h100", model="m", source="NVIDIA NeMo blog"), "megatron"),
        (Run(id="a", hardware="h100", model="m", notes="PyTorch FSDP"), "torch"),
        (Run(id="a", hardware="h100", model="m", notes="MaxText (JAX)"), "xla"),
        (Run(id="a", hardware="V100", model="m"), "megatron"),
    ],
)
def test_software(run: Run, software: str) -> None:
    assert read_software(run) == software


def test_optimizers() -> None:
    def ways(words: str) -> int:
        return read_optimizer_ways(Run(id="a", hardware="h", model="m", optimizer=words), 32)[0]

    assert ways("Adam, hybrid ZeRO-1 (states sharded over 8 GPUs)") == 8
    assert ways("distributed fused Adam (ZeRO-1)") == 32
    assert ways("AdamW, ZeRO-0") == ways("adam") == ways("") == 1


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("A100-80GB-SXM", "a100"),
        ("A100-40GB", "a100-40"),
        ("H100-SXM-96GB-500W", "h100"),
        ("H200-SXM", "h200"),
        ("GB200", "gb200"),
        ("v6e", "v6e"),
        ("TPU v5p", "v5p"),
        ("abacus", None),
        ("", None),
    ],
)
def test_chips(name: str, chip: str | None) -> None:
    assert chip_id(name) == chip
