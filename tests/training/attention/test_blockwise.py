"""Block by block equals all at once, in less memory and with half the work."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.training.attention import Masking, blockwise, reference
from muster.training.recompute import MIXING
from tests.training.attention.cases import equals_reference, inputs, one_document, packed


@pytest.mark.parametrize(
    ("N", "K", "window"), [(4, 4, None), (4, 2, 9), (6, 1, None), (4, 2, 1), (4, 4, 100)]
)
def test_equals_the_reference(N: int, K: int, window: int | None) -> None:
    mask = Masking(segments=packed(2, 48), window=window)
    equals_reference(partial(blockwise.attend, block=13), inputs(2, 48, N, K, 8), mask)


def test_equals_the_reference_in_any_order() -> None:
    order = np.random.default_rng(1).permutation(48).astype(np.int32)
    mask = Masking(segments=packed(2, 48), order=jnp.asarray(order), window=20)
    equals_reference(partial(blockwise.attend, block=16), inputs(2, 48, 4, 2, 8), mask)


def test_bfloat16_stays_near_the_reference() -> None:
    """Probabilities and inputs carry 8 bits of mantissa: an error of 2^-8 a factor."""
    mask = Masking(segments=packed(2, 64))
    arrays = inputs(2, 64, 4, 2, 16, dtype=jnp.bfloat16)
    equals_reference(partial(blockwise.attend, block=16), arrays, mask, tolerance=2**-6)


def test_only_blocks_below_the_diagonal_are_computed() -> None:
    """8 blocks: 36 of 64 pairs; a window of one block: the diagonal and the one beside it."""
    assert len(blockwise.causal_pairs(8, 16, None)) == 36
    assert len(blockwise.causal_pairs(8, 16, 17)) == 8 + 7
    assert len(blockwise.causal_pairs(8, 16, 1)) == 8
    q, k, v, _ = inputs(1, 128, 2, 2, 4)
    mask = Masking(segments=one_document(1, 128))
    jaxpr = jax.make_jaxpr(partial(blockwise.attend, mask=mask, scale=1.0, block=16))(q, k, v)
    assert "length=36" in str(jaxpr)


def test_whole_scores_are_never_held() -> None:
    """One head of 4096 tokens has 67 MB of scores; the reference holds them and more."""
    arrays = [jax.ShapeDtypeStruct((1, 4096, 1, 16), jnp.float32)] * 3
    mask = Masking(segments=one_document(1, 4096))

    def temporaries(attend: object) -> int:
        def total(*qkv: jax.Array) -> jax.Array:
            return jnp.sum(attend(*qkv, mask=mask, scale=1.0))  # type: ignore[operator]

        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(*arrays).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        return int(memory.temp_size_in_bytes)

    assert temporaries(reference.attend) > 4 * 4096 * 4096
    assert temporaries(blockwise.attend) < 4 * 4096 * 4096 / 10


def test_a_policy_may_keep_what_the_backward_pass_reads() -> None:
    """With output and log-sum-exp kept, the backward pass does not run the forward one again."""
    q, k, v, _ = inputs(1, 128, 2, 2, 4)
    mask = Masking(segments=one_document(1, 128))

    def loops(policy: Callable[..., bool]) -> int:
        @partial(jax.checkpoint, policy=policy)
        def total(*qkv: jax.Array) -> jax.Array:
            # The output is not linear in what is kept, so its gradient needs a forward pass.
            return jnp.sum(blockwise.attend(*qkv, mask=mask, scale=1.0, block=16) ** 2)

        return str(jax.make_jaxpr(jax.grad(total))(q, k, v)).count("length=36")

    assert loops(jax.checkpoint_policies.nothing_saveable) == 3
    assert loops(jax.checkpoint_policies.save_only_these_names(MIXING)) == 2
