"""Attention kernels: the same causal scores forward and backward, however blocks are named."""

import pytest

from muster.proof.hlo import Program, walk
from muster.proof.hlo.kinds import is_pallas, kernel_name
from muster.proof.kernels import work_of
from tests.proof.fixtures import program_of


def scores(program: Program) -> dict[str, float]:
    """Of each attention kernel of a program, as `fwd`, `dkv` or `dq`."""
    found = {}
    for visit in walk(program):
        if is_pallas(visit.op) and "splash" in (name := kernel_name(visit.op)):
            part = next(part for part in ("dkv", "dq", "fwd") if part in name)
            found[part] = work_of(visit.op, visit.computation).scores
    return found


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
