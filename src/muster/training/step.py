"""The training step: the one that trains, and the one that the compiler check compiles.

    gradients = d/dparams  sum over tokens of w * (-log p + z terms) / sum of w   + router's loss
    params, moments = AdamW(gradients)

Sums are weighted by tokens, so a batch taken in microbatches has the gradients of the whole batch,
also where its parts have different numbers of real tokens.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.sharding.rules import BATCH_AXES, SHARD_AXES
from muster.training.batch import Batch
from muster.training.experts import RouterLosses
from muster.training.loss import LossSums, cross_entropy
from muster.training.model import Model, hidden_states, output_matrix
from muster.training.params import Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that a step changes.

    Attributes:
        step: steps done, int32.
        params: the parameters.
        optimizer: optax's state; its moments are laid out as the parameters are, or finer.
    """

    step: jax.Array
    params: Params
    optimizer: optax.OptState


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What one step reports; float32 scalars, on every device.

    Attributes:
        loss: mean cross-entropy over the tokens that count, natural logarithm.
        z: mean of the squared log-normalizer.
        accuracy: share of tokens whose target was likeliest.
        tokens: tokens that count.
        balance: the routers' mean load-balancing loss a layer; 1 is even, 0 without experts.
        dropped: share of expert choices that found no room.
        grad_norm: global norm of the gradients before clipping.
        finite: whether loss and gradients were finite; if not, nothing was updated.
    """

    loss: jax.Array
    z: jax.Array
    accuracy: jax.Array
    tokens: jax.Array
    balance: jax.Array
    dropped: jax.Array
    grad_norm: jax.Array
    finite: jax.Array


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimized.

    Attributes:
        z_loss: weight of the squared log-normalizer of the softmax; 0 for none.
        router_loss: weight of the routers' load-balancing loss.
        chunk_tokens: tokens of a chip whose logits exist at once; None for a size that fits.
    """

    z_loss: float = 0.0
    router_loss: float = 0.0
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse weights that no run could use."""
        for name, weight in (("z-loss", self.z_loss), ("router loss", self.router_loss)):
            if not 0 <= weight < math.inf:
                raise BadInput(f"a {name} weighed by {weight:g}; it must be at least 0")


class _Sums(NamedTuple):
    loss: LossSums
    router: RouterLosses


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    model: Model,
    optimizer: optax.GradientTransformation,
    objective: Objective,
) -> tuple[TrainState, Metrics]:
    """One step: pure, to be jitted with its state donated.

    A step whose loss or gradients are not finite changes nothing but the step counter.
    """
    gradients, sums = gradients_of(state.params, batch, model=model, objective=objective)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)
    grad_norm = optax.tree.norm(wide)  # a sum of squares in bfloat16 would stop growing
    finite = jnp.isfinite(sums.loss.total) & jnp.isfinite(grad_norm)
    updates, moments = optimizer.update(gradients, state.optimizer, state.params)
    params = jax.tree.map(
        lambda value, change: (value.astype(jnp.float32) + change).astype(value.dtype),
        state.params,
        updates,
    )
    kept = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        (params, moments),
        (state.params, state.optimizer),
    )
    new = TrainState(step=state.step + 1, params=kept[0], optimizer=kept[1])
    return new, _metrics(sums, grad_norm, finite, model)


def gradients_of(
    params: Params, batch: Batch, *, model: Model, objective: Objective
) -> tuple[Params, _Sums]:
    """Gradients of the mean loss of a batch, taken in the layout's microbatches.

    Returns:
        The gradients, float32 where they were added up over microbatches and else in the
        parameters' own formats, and the sums that the metrics are made of.
    """
    tokens = jnp.maximum(jnp.sum(batch.weights), 1.0)

    def loss(params: Params, part: Batch) -> tuple[jax.Array, _Sums]:
        sums = evaluate(params, part, model=model, objective=objective)
        share = sums.loss.weights / tokens
        router = objective.router_loss * sums.router.balance / model.architecture.num_layers
        return sums.loss.total / tokens + router * share, _Sums(
            sums.loss, jax.tree.map(lambda value: value * share, sums.router)
        )

    differentiate = jax.grad(loss, has_aux=True)
    parts = model.partition.layout.microbatches
    if parts == 1:
        return differentiate(params, batch)

    def add(total: tuple[Params, _Sums], part: Batch) -> tuple[tuple[Params, _Sums], None]:
        return jax.tree.map(jnp.add, total, differentiate(params, part)), None

    zeros = jax.tree.map(lambda array: jnp.zeros_like(array, jnp.float32), params)
    split = in_microbatches(batch, model)
    shapes = jax.eval_shape(loss, params, jax.tree.map(lambda leaf: leaf[0], split))[1]
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (gradients, sums), _ = jax.lax.scan(add, (zeros, none), split)
    return gradients, sums


def evaluate(params: Params, batch: Batch, *, model: Model, objective: Objective) -> _Sums:
    """The loss of a batch, as sums over its tokens, and its routers' losses over layers."""
    x_BTD, router = hidden_states(params, batch, model)
    layout = model.partition.layout
    sums = cross_entropy(
        x_BTD,
        output_matrix(params, model),
        jnp.asarray(batch.targets),
        jnp.asarray(batch.weights),
        mesh=model.partition.mesh,
        vocab_size=model.architecture.vocab_size,
        z_loss=objective.z_loss,
        chunk_tokens=objective.chunk_tokens,
        head_axes=("slice", *SHARD_AXES) if layout.shards_over_slices else SHARD_AXES,
    )
    return _Sums(sums, router)


def in_microbatches(batch: Batch, model: Model) -> Batch:
    """A batch's rows as [M, B/M, T]: every chip keeps its own rows and takes them in M parts."""
    layout, place = model.partition.layout, model.partition
    M, ways = layout.microbatches, layout.batch_ways

    def split(leaf: jax.Array) -> jax.Array:
        B, T = leaf.shape
        by_chip = leaf.reshape(ways, M, B // (ways * M), T).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(
            by_chip.reshape(M, B // M, T), place.named(None, BATCH_AXES, "sequence")
        )

    return jax.tree.map(split, batch)


def _metrics(sums: _Sums, grad_norm: jax.Array, finite: jax.Array, model: Model) -> Metrics:
    tokens = jnp.maximum(sums.loss.weights, 1.0)
    layers = model.architecture.num_layers
    return Metrics(
        loss=sums.loss.nll / tokens,
        z=sums.loss.z / tokens,
        accuracy=sums.loss.correct / tokens,
        tokens=sums.loss.weights,
        balance=sums.router.balance / layers,
        dropped=sums.router.dropped / layers,
        grad_norm=grad_norm,
        finite=finite,
    )


def state_shardings(abstract: TrainState, model: Model) -> TrainState:
    """Where every array of a state lives: moments as their parameters, counters everywhere.

    With ZeRO-1 (`shards_optimizer`) the replicas of `data` also share out the moments between them.
    """
    place, table = model.partition, model.partition.params(model.architecture)

    def of_moment(path: tuple[object, ...], leaf: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        if not names:
            return place.replicated
        own = table[names[-1]]
        return _finer(own.spec, leaf.shape, model) if place.layout.shards_optimizer else own

    moments = jax.tree_util.tree_map_with_path(of_moment, abstract.optimizer)
    return TrainState(step=place.replicated, params=table, optimizer=moments)  # type: ignore[arg-type]


def _finer(spec: P, shape: tuple[int, ...], model: Model) -> jax.sharding.NamedSharding:
    """A sharding whose first dim that `data` still divides is split over it as well."""
    place = model.partition
    entries: list[tuple[str, ...]] = [
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in (*spec, *(None,) * (len(shape) - len(spec)))
    ]
    for dim, axes in enumerate(entries):
        ways = place.mesh.shape["data"]
        for axis in axes:
            ways *= place.mesh.shape[axis]
        if shape[dim] % ways == 0:
            entries[dim] = ("data", *axes)
            break
    return place.named(*(axes or None for axes in entries))
