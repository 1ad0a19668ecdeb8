"""The TPU kernel, interpreted on a CPU, against the reference; and compiled for a TPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from muster.errors import BadInput
from muster.planner.step_choices import AttentionBlocks
from muster.sharding.mesh import Layout
from muster.training.attention import Masking
from muster.training.attention.splash import splash
from muster.training.mesh import make_mesh
from tests.training.attention.cases import equals_reference, inputs, packed
from tests.training.attention.on_mesh import on_mesh
from tests.training.attention.test_context import naturally

# Sums in another order, and the scale applied to q instead of the scores.
TOLERANCE = 1e-5


@pytest.mark.parametrize(("window", "fused"), [(None, False), (200, False), (None, True)])
def test_equals_the_reference(window: int | None, fused: bool) -> None:
    mask = Masking(segments=packed(2, 512), window=window)
    blocks = AttentionBlocks(queries=128, keys=256, keys_computed=128, fused_backward=fused)
    attend = splash(blocks=blocks, interpret=True)
    equals_reference(attend, inputs(2, 512, 4, 2, 64), mask, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("layout", "window"),
    [
        (Layout(sequence=2, tensor=2), None),
        (Layout(sequence=2, tensor=2), 200),
        (Layout(data=2, tensor=4), None),
    ],
    ids=str,
)
def test_equals_the_reference_over_a_mesh(layout: Layout, window: int | None) -> None:
    ways = layout.sequence
    blocks = AttentionBlocks(queries=128, keys=128)
    attend = on_mesh(splash(ways, blocks=blocks, interpret=True), make_mesh(layout))
    mask = Masking(segments=packed(2, 512), window=window)
    if ways > 1:
        attend = naturally(attend, ways, 512)
    equals_reference(attend, inputs(2, 512, 4, 2, 64), mask, tolerance=TOLERANCE)


def test_bfloat16_stays_near_the_reference() -> None:
    """Inputs, probabilities and results carry 8 bits of mantissa; 0.6% was seen."""
    arrays = inputs(1, 256, 2, 1, 64, dtype=jnp.bfloat16)
    mask = Masking(segments=packed(1, 256))
    equals_reference(splash(interpret=True), arrays, mask, tolerance=2**-6)


def test_rows_that_are_no_multiple_of_the_lanes_are_refused() -> None:
    q, k, v, _ = inputs(1, 200, 2, 1, 64)
    with pytest.raises(BadInput, match="multiples of 128 tokens"):
        splash()(q, k, v, mask=Masking(segments=jnp.ones((1, 200), jnp.int32)), scale=1.0)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler")
@pytest.mark.parametrize("layout", ["fsdp=2,tensor=2", "sequence=4", "sequence=2,tensor=2"])
def test_compiles_for_a_tpu(layout: str) -> None:
    """Forward and backward of LLaMA-3 8B's heads, for v5p; in a process of its own."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.attention.compile_for_tpu", layout],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "custom-calls 3" in done.stdout
