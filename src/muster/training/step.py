"""The training step: the one that trains, and the one that the compiler check compiles.

    gradients = d/dparams  sum over tokens of w * (-log p + z terms) / sum of w   + router's loss
    params, moments = AdamW(gradients, learning rate)

Sums are weighted by tokens, so a batch taken in microbatches has the gradients of the whole batch,
also where its parts have different numbers of real tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.sharding.rules import BATCH_AXES
from muster.training.batch import Batch
from muster.training.exchange import gather_tokens, sum_over_replicas, sum_over_tokens
from muster.training.experts import RouterLosses
from muster.training.loss import LossSums, cross_entropy, logits
from muster.training.model import Model, hidden_states, output_matrix, output_shard
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
    rate: jax.Array,
    *,
    model: Model,
    optimizer: optax.GradientTransformation,
    objective: Objective,
) -> tuple[TrainState, Metrics]:
    """One step at a learning rate: pure, to be jitted with its state donated.

    A step whose loss or gradients are not finite changes nothing but the step counter.
    """
    gradients, sums = gradients_of(state.params, batch, model=model, objective=objective)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)
    grad_norm = optax.tree.norm(wide)  # a sum of squares in bfloat16 would stop growing
    finite = jnp.isfinite(sums.loss.total) & jnp.isfinite(grad_norm)
    updates, moments = optimizer.update(gradients, state.optimizer, state.params)
    params = jax.tree.map(
        lambda value, change: (value.astype(jnp.float32) - rate * change).astype(value.dtype),
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
    specs = _param_specs(model)
    on_mesh = _on_every_chip(
        partial(_chip_gradients, model=model, objective=objective), model, out_specs=(specs, P())
    )
    found: tuple[Params, _Sums] = on_mesh(params, batch)
    return found


def evaluate(params: Params, batch: Batch, *, model: Model, objective: Objective) -> _Sums:
    """The loss of a batch, as sums over its tokens, and its routers' losses over layers."""
    on_mesh = _on_every_chip(
        partial(_chip_loss, model=model, objective=objective), model, out_specs=P()
    )
    sums: _Sums = on_mesh(params, batch)
    return sums


def predict(params: Params, batch: Batch, *, model: Model) -> jax.Array:
    """Whole float32 logits [B, T, vocab_size] of a batch, for evaluation on few tokens."""

    def on_chip(params: Params, batch: Batch) -> jax.Array:
        x_BtD, _ = hidden_states(params, batch, model)
        return logits(*_gathered(x_BtD, output_shard(params, model), model=model))

    spec = model.partition.named(BATCH_AXES, "sequence", "tensor").spec
    every_BTV: jax.Array = _on_every_chip(on_chip, model, out_specs=spec)(params, batch)
    return every_BTV[..., : model.architecture.vocab_size]


def _on_every_chip[Out](
    on_chip: Callable[[Params, Batch], Out], model: Model, *, out_specs: Any
) -> Callable[[Params, Batch], Out]:
    """A function of one chip's shards and rows, as one of the whole arrays."""
    place = model.partition
    mapped: Callable[[Params, Batch], Out] = jax.shard_map(
        on_chip,
        mesh=place.mesh,
        in_specs=(_param_specs(model), place.tokens.spec),
        out_specs=out_specs,
        check_vma=False,  # gradients of what chips hold alike are added up in `exchange`
    )
    return mapped


def _param_specs(model: Model) -> dict[str, P]:
    table = model.partition.params(model.architecture)
    return {name: sharding.spec for name, sharding in table.items()}


def _chip_gradients(
    params: Params, batch: Batch, *, model: Model, objective: Objective
) -> tuple[Params, _Sums]:
    """The gradients of one chip's shards, complete."""
    place, layers = model.partition, model.architecture.num_layers
    tokens = jnp.maximum(sum_over_tokens(jnp.sum(batch.weights), place), 1.0)

    def loss(params: Params, part: Batch) -> tuple[jax.Array, _Sums]:
        sums = _chip_loss(params, part, model=model, objective=objective)
        share = sums.loss.weights / tokens
        # The router's loss is the same on every chip, and what all chips return is added up.
        router = objective.router_loss * sums.router.balance / (layers * place.mesh.size)
        return sums.loss.total / tokens + router * share, _Sums(
            sums.loss, jax.tree.map(lambda value: value * share, sums.router)
        )

    gradients, sums = _over_microbatches(
        jax.grad(loss, has_aux=True), params, batch, place.layout.microbatches
    )
    late = place.replica_axes(model.architecture) | dict.fromkeys(model.summed_at_once, ())
    return sum_over_replicas(gradients, late), sums


def _over_microbatches(
    differentiate: Callable[[Params, Batch], tuple[Params, _Sums]],
    params: Params,
    batch: Batch,
    parts: int,
) -> tuple[Params, _Sums]:
    """Gradients and sums of a chip's rows, added up over so many equal parts of them."""
    if parts == 1:
        return differentiate(params, batch)

    def add(total: tuple[Params, _Sums], part: Batch) -> tuple[tuple[Params, _Sums], None]:
        return jax.tree.map(jnp.add, total, differentiate(params, part)), None

    split = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, leaf.shape[1]), batch)
    first = jax.tree.map(lambda leaf: leaf[0], split)
    shapes = jax.eval_shape(differentiate, params, first)[1]
    zeros = jax.tree.map(lambda array: jnp.zeros_like(array, jnp.float32), params)
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, (zeros, none), split)
    return total


def _chip_loss(params: Params, batch: Batch, *, model: Model, objective: Objective) -> _Sums:
    x_BtD, router = hidden_states(params, batch, model)
    sums = cross_entropy(
        x_BtD,
        output_shard(params, model),
        jnp.asarray(batch.targets),
        jnp.asarray(batch.weights),
        place=model.partition,
        vocab_size=model.architecture.vocab_size,
        z_loss=objective.z_loss,
        chunk_tokens=objective.chunk_tokens,
        gather=partial(_gathered, model=model),
    )
    return _Sums(sums, router)


def _gathered(
    x_BtD: jax.Array, head_shard: jax.Array, *, model: Model
) -> tuple[jax.Array, jax.Array]:
    """What logits are computed from: x of all tokens that `tensor` splits, the head whole in D."""
    return gather_tokens(x_BtD, model.partition), output_matrix(head_shard, model)


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
