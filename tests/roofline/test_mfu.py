"""Utilization: published runs and threads, each under the convention that it follows."""

from functools import partial

import pytest

from muster.models.architecture import Architecture
from muster.roofline.mfu import Convention, active_params, flops_per_token, mfu, mfu_from_flops

from .cases import deepseek_v3, dense, gemma_3_12b_text, published

# id of the row in runs.csv: model, sequence length, GFLOP per token by 6N, causal, full.
RUNS = {
    "maxtext-001": (
        dense(L=48, D=6144, F=24576, N=24, K=24, H=256, V=32768, gated=False, tied=True),
        1024,
        (131.671, 133.48, 135.291),
    ),
    "maxtext-046": (
        dense(L=128, D=20480, F=65536, N=64, K=64, H=256, V=32768, gated=False, tied=True),
        2048,
        (3096.435, 3122.173, 3147.943),
    ),
    "maxtext-056": (published("Llama-2-7B"), 4096, (40.43, 42.864, 46.085)),
    "maxtext-064": (published("Llama-3.1-405B"), 8192, (2435.12, 2523.956, 2625.425)),
    "maxtext-067": (published("Llama-2-70B"), 4096, (413.86, 428.385, 444.491)),
    "tpu-recipes-009": (published("Llama-3.1-8B"), 8192, (48.182, 51.47, 57.913)),
    "tpu-recipes-023": (published("Llama-3.1-70B"), 8192, (423.322, 449.223, 481.435)),
    "papers-012": (published("TinyLlama-1.1B"), 2048, (6.6, 6.76, 7.314)),
    "dgxc-benchmarking-073": (
        dense(L=7, D=16384, F=53248, N=128, K=8, H=128, V=128256),
        8192,
        (159.1, 152.127, 157.765),
    ),
    "maxtext-068": (published("Mixtral-8x7B"), 4096, (77.278, 79.713, 82.934)),
    "nemo-032": (published("Qwen3-30B-A3B"), 4096, (20.117, 23.082, 27.914)),
    "tpu-recipes-085": (published("Qwen3-235B-A22B"), 4096, (133.14, 148.331, 167.255)),
    "tpu-recipes-038": (deepseek_v3(), 8192, (225.308, 281.152, 342.557)),
    "tpu-recipes-039": (gemma_3_12b_text(), 32768, (70.592, 79.014, 87.502)),
    "tpu-recipes-058": (published("gpt-oss-120b"), 8192, (34.261, 34.523, 38.261)),
}


@pytest.mark.parametrize("row", RUNS)
def test_conventions_reproduce_published_runs(row: str) -> None:
    model, T, expected = RUNS[row]
    conventions = (Convention.SIX_N, Convention.CAUSAL, Convention.FULL)
    ours = [flops_per_token(model, T, convention) / 1e9 for convention in conventions]
    assert ours == pytest.approx(expected, rel=1e-3)


def _percent(
    model: Architecture,
    T: int,
    convention: Convention,
    *,
    tokens_per_second: float,
    chips: int,
    peak_flops: float,
) -> float:
    return 100 * (
        mfu(
            flops_per_token=flops_per_token(model, T, convention),
            tokens_per_second=tokens_per_second,
            chips=chips,
            peak_flops=peak_flops,
            convention=convention,
        ).fraction
    )


def test_qwen_3b_on_a_v4_slice_of_32_chips() -> None:
    """cases.md 42: v4-64 are 32 chips."""
    qwen = dense(L=36, D=2048, F=11008, N=16, K=2, H=128, V=151936, tied=True)
    percent = partial(
        _percent, qwen, 8192, tokens_per_second=8_388_608 / 170, chips=32, peak_flops=275e12
    )
    assert percent(Convention.SIX_N) == pytest.approx(10.4, abs=0.05)
    assert percent(Convention.CAUSAL) == pytest.approx(12.4, abs=0.05)


def test_7b_on_h100_is_measured_against_the_dense_peak() -> None:
    """cases.md 43: 39% at 6N, 45.5% in PaLM's convention; matmul parameters only, 44.7%."""
    percent = partial(
        _percent,
        published("Llama-2-7B"),
        4096,
        tokens_per_second=9600,
        chips=1,
        peak_flops=989.4e12,
    )
    assert percent(Convention.SIX_N) == pytest.approx(39.2, abs=0.05)
    assert percent(Convention.SIX_N_FULL) == pytest.approx(45.5, abs=0.05)
    assert percent(Convention.FULL) == pytest.approx(44.7, abs=0.05)


def test_global_tokens_are_divided_by_every_gpu() -> None:
    """cases.md 44: 2.8% per GPU, not 45.5%."""
    result = mfu(
        flops_per_token=6 * 70e9,
        tokens_per_second=16.4e6 / (13.5 * 3600),
        chips=16,
        peak_flops=312e12,
        convention=Convention.SIX_N,
    )
    assert 100 * result.fraction == pytest.approx(2.8, abs=0.05)
    assert str(result) == "2.8% (6N)"


def test_a_v3_device_is_a_core() -> None:
    """cases.md 47."""
    result = mfu_from_flops(36.7e12, 61.5e12, convention=Convention.FULL)
    assert 100 * result.fraction == pytest.approx(59.7, abs=0.05)


def test_qwen_32b_on_a_v5p_slice_of_128_chips() -> None:
    """cases.md 48: v5p-256 are 128 chips; one sequence of 32,768 tokens each, 65 s a step."""
    qwen = published("Qwen3-32B")
    assert active_params(qwen) == pytest.approx(32.76e9, rel=1e-3)
    percent = partial(
        _percent, qwen, 32768, tokens_per_second=128 * 32768 / 65, chips=128, peak_flops=4.59e14
    )
    assert percent(Convention.SIX_N) == pytest.approx(21.6, abs=0.05)
    assert percent(Convention.SIX_N_CAUSAL) == pytest.approx(33, abs=0.5)
    assert percent(Convention.CAUSAL) == pytest.approx(32.4, abs=0.05)


@pytest.mark.parametrize("convention", Convention)
def test_every_printed_mfu_names_its_convention(convention: Convention) -> None:
    assert str(mfu_from_flops(1.0, 2.0, convention=convention)) == f"50.0% ({convention.value})"
