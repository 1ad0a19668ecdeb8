"""One loss curve under every layout, with and without remat, microbatches and packing.

The curve is that of the plain model (`naive`) with AdamW written in numpy in double precision.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.roofline.remat import Remat
from muster.sharding.mesh import Layout
from muster.training.batch import Batch
from muster.training.mesh import make_mesh
from muster.training.partition import Partition
from muster.training.step import Objective
from tests.training import naive, tiny

STEPS = 5
# Of rows with one document and of rows with several and padding.
BATCHES = [
    tiny.packed(0),
    tiny.whole_rows(np.random.default_rng(1).integers(0, tiny.V, (tiny.B, tiny.T))),
    *(tiny.packed(seed) for seed in range(2, STEPS)),
]
EXPERTS = tiny.CONFIG | tiny.EXPERTS

LAYOUTS = [
    Layout(),
    Layout(data=8),
    Layout(fsdp=8),
    Layout(sequence=8),
    Layout(data=2, tensor=4),  # more ways than KV heads
    Layout(data=2, fsdp=2, tensor=2),
    Layout(fsdp=2, sequence=2, tensor=2),
    Layout(data=4, fsdp=2, shards_optimizer=True),
    Layout(slice=2, fsdp=4, shards_over_slices=True),
    Layout(data=2, fsdp=2, sequence=2, microbatches=2),
]
EXPERT_LAYOUTS = [
    Layout(),
    Layout(data=2, expert=4),
    Layout(fsdp=2, expert=2, tensor=2),
    Layout(sequence=2, expert=2, tensor=2),
    Layout(slice=2, data=2, expert=2, microbatches=1, shards_optimizer=True),
]
# A few steps apart in float32; a wrong gradient of any kind is off by 1e-3 and more.
WITHIN = 3e-6


def name_of(layout: Layout) -> str:
    extra = [
        f"{layout.microbatches} microbatches" * (layout.microbatches > 1),
        "ZeRO-1" * layout.shards_optimizer,
        "over slices" * layout.shards_over_slices,
    ]
    return ", ".join([str(layout), *filter(None, extra)])


def curve(config: dict[str, Any], batches: list[Batch]) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the plain model under numpy's AdamW."""
    architecture = tiny.architecture(**config)
    place = Partition(mesh=make_mesh(Layout()), layout=Layout())
    params = {
        name: array.astype(np.float64) for name, array in tiny.numbers(architecture, place).items()
    }
    adam = AdamW(params)

    def both(params: dict[str, jax.Array], batch: Batch) -> tuple[jax.Array, jax.Array]:
        logits, balance = naive.logits_and_balance(params, batch, config)
        loss = naive.mean_loss(logits, batch)
        return loss + config.get("router_aux_loss_coef", 0.0) * balance, loss

    differentiate = jax.value_and_grad(both, has_aux=True)
    losses, norms = [], []
    for batch in batches:
        single = {name: jnp.asarray(array, jnp.float32) for name, array in params.items()}
        (_, loss), gradients = differentiate(single, batch)
        wide = {name: np.asarray(array, np.float64) for name, array in gradients.items()}
        losses.append(float(loss))
        norms.append(float(np.sqrt(sum((array**2).sum() for array in wide.values()))))
        params = adam.updated(params, wide)
    return losses, norms


class AdamW:
    """As `tiny.optimizer()` says: rate 3e-3, two steps of warmup, cosine to a tenth at step 5."""

    rates = (1.5e-3, 3e-3, 3e-3, 3e-4 + 2.7e-3 * 0.75, 3e-4 + 2.7e-3 * 0.25)  # (1 + cos t) / 2

    def __init__(self, params: dict[str, tiny.Array]) -> None:
        self.steps = 0
        self.m = {name: np.zeros_like(array) for name, array in params.items()}
        self.v = {name: np.zeros_like(array) for name, array in params.items()}

    def updated(
        self, params: dict[str, tiny.Array], gradients: dict[str, tiny.Array]
    ) -> dict[str, tiny.Array]:
        norm = np.sqrt(sum((array**2).sum() for array in gradients.values()))
        rate, new = self.rates[self.steps], {}
        self.steps += 1
        for name, value in params.items():
            g = gradients[name] * min(1.0, 1.0 / norm)
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.95 * self.v[name] + 0.05 * g**2
            m = self.m[name] / (1 - 0.9**self.steps)
            v = self.v[name] / (1 - 0.95**self.steps)
            decay = 0.0 if "norm" in name or "bias" in name else 0.1
            new[name] = value - rate * (m / (np.sqrt(v) + 1e-8) + decay * value)
        return new


@pytest.fixture(scope="module")
def dense() -> tuple[list[float], list[float]]:
    return curve(tiny.CONFIG, BATCHES)


@pytest.fixture(scope="module")
def experts() -> tuple[list[float], list[float]]:
    return curve(EXPERTS, BATCHES)


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_every_layout_has_the_same_curve(
    layout: Layout, dense: tuple[list[float], list[float]]
) -> None:
    trained = tiny.trainer(tiny.planned(tiny.architecture(), layout))
    check(trained, dense)


@pytest.mark.parametrize("layout", EXPERT_LAYOUTS, ids=name_of)
def test_every_layout_of_experts_has_the_same_curve(
    layout: Layout, experts: tuple[list[float], list[float]]
) -> None:
    plan = tiny.planned(tiny.architecture(**tiny.EXPERTS), layout)
    weight = tiny.EXPERTS["router_aux_loss_coef"]
    check(tiny.trainer(plan, objective=Objective(router_loss=weight)), experts)


@pytest.mark.parametrize("remat", [policy for policy in Remat if policy is not Remat.NONE])
def test_every_remat_policy_has_the_same_curve(
    remat: Remat, dense: tuple[list[float], list[float]]
) -> None:
    layout = Layout(fsdp=2, sequence=2, tensor=2)
    check(tiny.trainer(tiny.planned(tiny.architecture(), layout, remat=remat)), dense)


@pytest.mark.parametrize("remat", [Remat.NONE, Remat.OUTPUTS])
def test_the_forms_for_tpus_have_the_same_curve(
    remat: Remat, dense: tuple[list[float], list[float]]
) -> None:
    plan = tiny.planned(tiny.architecture(), Layout(fsdp=2, sequence=2, tensor=2), remat=remat)
    check(tiny.trainer(plan, partition=tiny.as_tpus), dense)


def check(trained: tiny.Trainer, wanted: tuple[list[float], list[float]]) -> None:
    _, metrics = trained.run(BATCHES)
    losses, norms = wanted
    assert [float(each.loss) for each in metrics] == pytest.approx(losses, rel=WITHIN)
    assert [float(each.grad_norm) for each in metrics] == pytest.approx(norms, rel=1e-4)
    assert all(each.finite for each in metrics)
    assert [int(each.tokens) for each in metrics] == [int(b.weights.sum()) for b in BATCHES]
