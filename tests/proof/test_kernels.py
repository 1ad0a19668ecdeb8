"""Attention kernels: the same causal scores forward and backward, however blocks are named."""

import pytest

from muster.proof.hlo import Program, walk
from muster.proof.hlo.kinds import is_pallas, kernel_name
from muster.proof.kernels import Work, work_of
from tests.proof.fixtures import kernels_of, program_of


def attention(program: Program) -> dict[str, Work]:
    """What each attention kernel of a program does, as `fwd`, `dkv` or `dq`."""
    found = {}
    for visit in walk(program):
        if is_pallas(visit.op) and (name := kernel_name(visit.op)).startswith("splash_mha_"):
            part = name.removeprefix("splash_mha_").partition("_")[0]
            found[part] = work_of(visit.op, visit.computation)
    return found


def scores(program: Program) -> dict[str, float]:
    """Of each attention kernel."""
    return {part: work.scores for part, work in attention(program).items()}


# Rows of 1024 tokens in blocks of 512; under context parallelism over 4 chips, each has 256 of the
# queries in blocks of 128, and its fair share of the causal square.
@pytest.mark.parametrize(
    ("name", "heads", "queries", "block"),
    [
        ("llama-v5p-fsdp64", 8, 1024, 512),
        ("llama-v6e-tensor4", 4 * 2, 1024, 512),
        ("llama-v5p-sequence", 8, 256, 128),
    ],
)
def test_backward_kernels_have_the_forward_ones_scores(
    name: str, heads: int, queries: int, block: int
) -> None:
    found = scores(program_of(name))
    assert found.keys() == {"fwd", "dkv", "dq"}
    blocks = 1024 // block
    causal = (blocks + 1) / (2 * blocks)  # whole blocks on the diagonal
    for part, each in found.items():
        assert each == pytest.approx(heads * queries * 1024 * causal), part


def test_a_window_leaves_out_the_blocks_beyond_it() -> None:
    """Rows of 4096 in blocks of 512: a window of 1024 reaches three blocks of keys, not up to 8."""
    heads, rows, block, seen = 8, 4096 // 512, 512, 3
    found = scores(program_of("mistral-v5p-window"))
    assert found == dict.fromkeys(("fwd", "dkv", "dq"), heads * rows * seen * block**2)


# JAX 0.7.2 writes blocks into a kernel's name, those of its backward pass in the forward one's too,
# and has what a kernel accumulates in VMEM among its results.
@pytest.mark.parametrize("jax", ["0.7.2", "0.12.0.1"])
@pytest.mark.parametrize(
    ("backward", "matmuls"),
    [("fused", {"fwd": 2, "dkv": 5}), ("apart", {"fwd": 2, "dkv": 4, "dq": 3})],
)
def test_a_kernel_is_known_however_its_jax_names_it(
    jax: str, backward: str, matmuls: dict[str, int]
) -> None:
    batch, heads, tokens, head_dim, blocks = 2, 8, 2048, 128, 2048 // 512
    causal = tokens**2 * (blocks + 1) / (2 * blocks)
    found = attention(kernels_of(f"splash-{backward}-jax-{jax}"))
    assert {part: work.flops for part, work in found.items()} == {
        part: number * 2 * batch * heads * causal * head_dim for part, number in matmuls.items()
    }
    assert {part: work.forward for part, work in found.items()} == {
        part: part == "fwd" for part in matmuls
    }
