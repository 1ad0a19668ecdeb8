"""AdamW against the same written in numpy, and its schedules, masks and refusals."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.errors import BadInput
from muster.training.optimizer import OptimizerConfig, decayed, learning_rate, make_optimizer
from tests.training.tiny import Array

NAMES = ("layers.mlp.up", "layers.norm_0", "layers.attention.query.bias")


def config(**changes: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"total_steps": 10, "schedule": "constant", **changes})


def gradients(step: int, scale: float = 1.0) -> dict[str, Array]:
    draw = np.random.default_rng(step)
    return {name: (scale * draw.standard_normal(64)).astype(np.float32) for name in NAMES}


def rounded(array: Array, dtype: str) -> Array:
    return np.asarray(jnp.asarray(array, dtype), np.float64)


def by_hand(params: dict[str, Array], steps: int, of: OptimizerConfig) -> dict[str, Array]:
    """AdamW (arXiv:1711.05101) of a constant rate, in double precision."""
    values = {name: array.astype(np.float64) for name, array in params.items()}
    m = {name: np.zeros(64) for name in values}
    v = {name: np.zeros(64) for name in values}
    for step in range(1, steps + 1):
        g = {name: array.astype(np.float64) for name, array in gradients(step, 3.0).items()}
        norm = np.sqrt(sum((array**2).sum() for array in g.values()))
        clipped = min(1.0, of.clip_norm / norm) if of.clip_norm else 1.0
        for name, value in values.items():
            m_new = of.b1 * m[name] + (1 - of.b1) * clipped * g[name]
            v_new = of.b2 * v[name] + (1 - of.b2) * (clipped * g[name]) ** 2
            direction = (m_new / (1 - of.b1**step)) / (np.sqrt(v_new / (1 - of.b2**step)) + of.eps)
            decay = of.weight_decay if name == "layers.mlp.up" else 0.0
            values[name] = value - of.learning_rate * (direction + decay * value)
            m[name] = rounded(m_new, of.moments_dtype)
            v[name] = rounded(v_new, of.moments_dtype)
    return values


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("moments_dtype", ["float32", "bfloat16"])
def test_equals_adamw_by_hand(moments_dtype: str, clip_norm: float) -> None:
    of = config(learning_rate=0.01, clip_norm=clip_norm, moments_dtype=moments_dtype, eps=1e-3)
    update = make_optimizer(of)
    params = gradients(0)
    wanted = by_hand(params, 4, of)
    state = update.init(params)
    take = jax.jit(update.update)
    for step in range(1, 5):
        changes, state = take(gradients(step, 3.0), state, params)
        params = {
            name: np.asarray(params[name] - of.learning_rate * changes[name]) for name in NAMES
        }
    # Float32, and a bfloat16 moment that float32 rounded to the other neighbour.
    within = 1e-6 if moments_dtype == "float32" else 1e-4
    for name in NAMES:
        np.testing.assert_allclose(params[name], wanted[name], atol=within, rtol=0)
    kept = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert kept == {moments_dtype}


def test_bfloat16_gradients_are_clipped_in_float32() -> None:
    """4096 ones: a bfloat16 sum of squares stops at 256."""
    ones = {"w": jnp.ones(4096, jnp.bfloat16)}
    update = make_optimizer(config(clip_norm=1.0))
    _, state = update.update(ones, update.init(ones), ones)
    mean = next(leaf for leaf in jax.tree.leaves(state) if leaf.ndim)
    np.testing.assert_allclose(mean, 0.1 / 64, rtol=1e-6)


def rates(of: OptimizerConfig, steps: int) -> list[float]:
    schedule = learning_rate(of)
    return [float(schedule(step)) for step in range(steps)]


def test_cosine_rises_to_the_peak_and_ends_at_its_final_share() -> None:
    of = OptimizerConfig(total_steps=100, learning_rate=1.0, warmup_steps=10)
    found = rates(of, 101)
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[10] == pytest.approx(1.0)
    assert found[55] == pytest.approx(0.1 + 0.9 * 0.5)
    assert found[100] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in pairwise(found[10:]))


def test_linear_falls_in_a_line() -> None:
    of = OptimizerConfig(total_steps=20, learning_rate=2.0, schedule="linear", final_share=0.0)
    assert rates(of, 21) == pytest.approx([2.0 * (1 - step / 20) for step in range(21)])


def test_constant_stays_behind_its_warmup() -> None:
    of = OptimizerConfig(total_steps=9, learning_rate=2.0, warmup_steps=4, schedule="constant")
    assert rates(of, 9) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_one_step_of_warmup_starts_at_the_peak(schedule: Any) -> None:
    of = OptimizerConfig(total_steps=5, learning_rate=2.0, warmup_steps=1, schedule=schedule)
    assert rates(of, 2)[:2] == pytest.approx([2.0, 2.0])


def test_warmup_longer_than_the_run_only_rises() -> None:
    of = OptimizerConfig(total_steps=5, learning_rate=1.0, warmup_steps=10)
    assert rates(of, 5) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_only_matrices_decay() -> None:
    names = ("embedding", "head", "final_norm", "layers.norm_1", "layers.attention.output",
             "layers.attention.query_norm", "layers.attention.key.bias", "layers.router",
             "layers.experts.down")  # fmt: skip
    found = decayed(dict.fromkeys(names, jnp.zeros(1)))
    assert {name for name, decays in found.items() if decays} == {
        "embedding", "head", "layers.attention.output", "layers.router", "layers.experts.down"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "cosin"}, "schedule 'cosin'; choose from cosine, linear, constant"),
        ({"learning_rate": -1.0}, "learning rate -1"),
        ({"learning_rate": float("nan")}, "learning rate nan"),
        ({"warmup_steps": -1}, "-1 warmup steps"),
        ({"b1": 1.0}, "b1 1 and b2 0.95"),
        ({"weight_decay": -0.1}, "weight decay -0.1"),
        ({"weight_decay": float("nan")}, "weight decay nan"),
        ({"weight_decay": float("inf")}, "weight decay inf"),
        ({"clip_norm": -1.0}, "clipping norm -1"),
        ({"clip_norm": float("nan")}, "clipping norm nan"),
    ],
    ids=str,
)
def test_refuses_numbers_that_no_run_could_use(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        config(**changes)
