"""FLOPs of compiled programs against the arithmetic of the models that they were compiled from."""

from muster.proof.hlo.flops import matmul_flops
from tests.proof.fixtures import program_of

# The fixtures' LLaMA: D 1024, F 4096, 4 layers, 8 heads of 128, V 32000 (`make_programs.LLAMA`).
D, F, L, V, TOKENS = 1024, 4096, 4, 32000, 1024
MATRICES = L * (4 * D * D + 3 * D * F) + D * V


def test_every_matmul_of_a_step_is_counted_once() -> None:
    # 2 FLOPs a parameter and token forward, 4 backward; nothing is computed again.
    assert matmul_flops(program_of("llama-v5p-one-chip")) == 6 * MATRICES * TOKENS


def test_what_is_computed_again_counts_again() -> None:
    # `outputs` keeps neither Q, K, V nor gate and up: their matmuls run a second time.
    again = L * (3 * D * D + 2 * D * F)
    assert matmul_flops(program_of("llama-v5p-hybrid")) == (6 * MATRICES + 2 * again) * TOKENS


def test_a_mesh_leaves_each_chip_its_share() -> None:
    # 16 sequences over fsdp 8 x tensor 2: one sequence's worth a chip.
    whole = matmul_flops(program_of("llama-v5p-one-chip"))
    assert matmul_flops(program_of("llama-v5p-fsdp-tensor")) == whole


def test_rotary_matmuls_and_parts_of_gradients_are_counted() -> None:
    """LLaMA-3 8B's widths: gradients cut in parts; Q and K turned forward, again, and backward."""
    wide, inner, words, N, K, H, tokens = 4096, 14336, 128256, 32, 8, 128, 4096
    layer = 2 * wide * (N + K) * H + 3 * wide * inner
    matrices = L * layer + wide * words
    turned = L * (N + K) * H * H
    expected = (6 * matrices + 3 * 2 * turned) * tokens
    assert matmul_flops(program_of("llama-v5p-parts")) == expected
