"""One training step: what it reports, what it leaves alone, and in which formats."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.errors import BadInput
from muster.sharding.mesh import Layout
from muster.training.batch import Batch
from muster.training.step import Objective, TrainState
from tests.training import naive, tiny


@pytest.fixture(scope="module")
def trained() -> tiny.Trainer:
    layout = Layout(data=2, fsdp=2, tensor=2)
    return tiny.trainer(tiny.planned(tiny.architecture(), layout), objective=Objective(z_loss=1e-2))


def logits_of(trained: tiny.Trainer, batch: Batch) -> tiny.Array:
    params = tiny.numbers(tiny.architecture(), trained.place)
    return np.asarray(
        naive.logits_and_balance(
            {name: jnp.asarray(array) for name, array in params.items()}, batch, tiny.CONFIG
        )[0],
        np.float64,
    )


def test_reports_means_over_the_tokens_that_count(trained: tiny.Trainer) -> None:
    batch = tiny.packed(0)
    _, (metrics,) = trained.run([batch])
    logits, weights = logits_of(trained, batch), np.asarray(batch.weights)
    peak = logits.max(-1, keepdims=True)
    log_norm = peak[..., 0] + np.log(np.exp(logits - peak).sum(-1))
    target = np.take_along_axis(logits, np.asarray(batch.targets)[..., None], -1)[..., 0]
    likeliest = logits.argmax(-1) == batch.targets

    def mean(values: tiny.Array) -> float:
        return float((values * weights).sum() / weights.sum())

    assert float(metrics.loss) == pytest.approx(mean(log_norm - target), rel=1e-6)
    assert float(metrics.z) == pytest.approx(mean(log_norm**2), rel=1e-6)
    assert float(metrics.accuracy) == pytest.approx(mean(likeliest), abs=1e-7)
    assert float(metrics.tokens) == weights.sum()
    assert (float(metrics.balance), float(metrics.dropped)) == (0, 0)
    assert bool(metrics.finite)


def bytes_of(state: TrainState) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def test_a_step_that_is_not_finite_changes_nothing_but_the_counter(trained: tiny.Trainer) -> None:
    state, _ = trained.take(trained.state(), tiny.packed(0))
    before = bytes_of(replace(state, step=jnp.zeros(())))
    spoilt = tiny.packed(1)
    spoilt = replace(spoilt, weights=np.where(np.asarray(spoilt.weights) > 0, np.inf, 0.0))
    state, metrics = trained.take(state, replace(spoilt, weights=spoilt.weights.astype(np.float32)))
    assert not bool(metrics.finite)
    assert int(state.step) == 2
    assert bytes_of(replace(state, step=jnp.zeros(()))) == before
    state, metrics = trained.take(state, tiny.packed(2))
    assert bool(metrics.finite)
    assert bytes_of(replace(state, step=jnp.zeros(()))) != before


def test_a_batch_of_padding_alone_is_no_accident(trained: tiny.Trainer) -> None:
    empty = jax.tree.map(np.zeros_like, tiny.packed(0))
    _, metrics = trained.take(trained.state(), empty)
    assert (float(metrics.loss), float(metrics.tokens)) == (0, 0)
    assert bool(metrics.finite)


def test_the_old_state_is_given_up(trained: tiny.Trainer) -> None:
    state = trained.state()
    trained.take(state, tiny.packed(0))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_bfloat16_all_through_stays_near_float32() -> None:
    """Weights, activations and moments in bfloat16, gradients added up in float32."""
    layout = Layout(fsdp=2, sequence=2, microbatches=4)
    plan = tiny.planned(
        tiny.architecture(), layout,
        param_dtype="bf16", compute_dtype="bf16", optimizer_dtype="bf16",
    )  # fmt: skip
    narrow = tiny.trainer(plan)
    wide = tiny.trainer(tiny.planned(tiny.architecture(), layout))
    batches = [tiny.packed(seed) for seed in (0, 1, 0, 1, 0)]
    state, metrics = narrow.run(batches)
    found = [float(each.loss) for each in metrics]
    assert found == pytest.approx(wide.losses(batches), rel=2e-3)
    assert found[4] < found[2] < found[0] - 0.02
    kept = {
        leaf.dtype.name for leaf in jax.tree.leaves((state.params, state.optimizer)) if leaf.ndim
    }
    assert kept == {"bfloat16"}


@pytest.mark.parametrize(
    ("z_loss", "router_loss"), [(-1.0, 0.0), (float("nan"), 0.0), (0.0, float("inf"))]
)
def test_refuses_weights_of_losses_that_no_run_could_use(z_loss: float, router_loss: float) -> None:
    with pytest.raises(BadInput, match="must be at least 0"):
        Objective(z_loss=z_loss, router_loss=router_loss)
