"""Mixtures of experts: a router picks k of E gated MLPs for every token.

Two ways to bring tokens to their experts, over the mesh axis `expert`:

    dropless   every token meets all its experts. Tokens are sorted by expert and multiplied in
               groups of different sizes; the chips of an expert group see all the group's tokens
               (an all-gather), each works on its own experts, and the sums are scattered back.
    capacity   each expert takes at most `factor` times its fair share of a chip's tokens, so that
               every shape is static and only chosen tokens travel (all-to-all); what does not fit
               passes the layer by (GShard, arXiv:2006.16668).

Letters: B batch, T tokens of a sequence, D d_model, F d_ff, E experts, k experts a token,
n tokens of a chip, m rows that a chip multiplies, C rows of one expert.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.models.architecture import Experts
from muster.sharding.rules import BATCH_AXES, SHARD_AXES
from muster.training.batch import Batch
from muster.training.params import Params
from muster.training.recompute import named

if TYPE_CHECKING:
    from muster.training.model import Model

type Activation = Callable[[jax.Array], jax.Array]


class _Rows(NamedTuple):
    """One chip's tokens, with their chosen experts and what weighs them."""

    x_nD: jax.Array
    share_nk: jax.Array
    choice_nk: jax.Array


class _Matrices(NamedTuple):
    """One chip's experts: [E/ways, D, F], the same, and [E/ways, F, D]."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


@dataclass(frozen=True, kw_only=True)
class _How:
    """What is static; `ways` split the experts."""

    experts: Experts
    activation: Activation
    capacity_factor: float
    ways: int


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """How tokens reach their experts.

    Attributes:
        capacity_factor: with `capacity`, an expert's rows over its fair share of a chip's tokens.
    """

    kind: Literal["dropless", "capacity"] = "dropless"
    capacity_factor: float = 1.25


DROPLESS = Dispatch()


def parse_dispatch(text: str) -> Dispatch:
    """Read `dropless`, `capacity` or `capacity=1.5`.

    Raises:
        BadInput: anything else.

    >>> parse_dispatch("capacity=2").capacity_factor
    2.0
    """
    kind, _, factor = text.partition("=")
    if kind == "dropless" and not factor:
        return DROPLESS
    try:
        number = float(factor) if factor else Dispatch.capacity_factor
    except ValueError:
        number = math.nan
    if kind != "capacity" or not 0 < number < math.inf:
        raise BadInput(f"--experts {text!r} is not known; write dropless, capacity or capacity=1.5")
    return Dispatch(kind="capacity", capacity_factor=number)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class RouterLosses:
    """What the routers add to the loss, summed over layers.

    Attributes:
        balance: E * sum over experts of (share of choices) * (mean probability): 1 a layer when
            the load is even (Switch Transformer, arXiv:2101.03961, equation 4).
        dropped: share of choices that found their expert full.
    """

    balance: jax.Array
    dropped: jax.Array

    @staticmethod
    def none() -> "RouterLosses":
        """Of a layer without experts."""
        return RouterLosses(balance=jnp.zeros(()), dropped=jnp.zeros(()))

    def __add__(self, other: "RouterLosses") -> "RouterLosses":
        return RouterLosses(
            balance=self.balance + other.balance, dropped=self.dropped + other.dropped
        )


def mixture(
    weights: Params, x_BTD: jax.Array, experts: Experts, batch: Batch, model: "Model"
) -> tuple[jax.Array, RouterLosses]:
    """The weighted sum of each token's experts: [B, T, D] to [B, T, D], and the router's losses."""
    place = model.partition
    real_BT = jnp.asarray(batch.segments) > 0
    share_BTk, choice_BTk, balance = route(weights["router"], x_BTD, experts, real_BT, model)
    x_BTD = jax.lax.with_sharding_constraint(x_BTD, place.whole_tokens)
    scatters = place.residual.spec[1] == ("sequence", "tensor")
    work = _dropless if model.dispatch.kind == "dropless" else _with_capacity
    how = _How(
        experts=experts,
        activation=_activation(model),
        capacity_factor=model.dispatch.capacity_factor,
        ways=place.layout.expert,
    )

    def on_one_chip(
        x_btD: jax.Array,
        share: jax.Array,
        choice: jax.Array,
        gate: jax.Array,
        up: jax.Array,
        down: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        b, t, D = x_btD.shape
        rows = _Rows(x_btD.reshape(b * t, D), share.reshape(b * t, -1), choice.reshape(b * t, -1))
        matrices = _Matrices(_gathered(gate, 1), _gathered(up, 1), _gathered(down, 2))
        y_nD, dropped = work(rows, matrices, how)
        y_btD = y_nD.reshape(b, t, D)
        if scatters:
            y_btD = jax.lax.psum_scatter(y_btD, "tensor", scatter_dimension=1, tiled=True)
        else:
            y_btD = jax.lax.psum(y_btD, "tensor")
        return y_btD, jax.lax.pmean(dropped, (*BATCH_AXES, "sequence"))

    tokens, into = P(BATCH_AXES, "sequence"), P("expert", _GATHERED, "tensor")
    out_BTD, dropped = jax.shard_map(
        on_one_chip,
        mesh=place.mesh,
        in_specs=(tokens, tokens, tokens, into, into, P("expert", "tensor", _GATHERED)),
        out_specs=(place.residual.spec, P()),
        check_vma=False,
    )(
        x_BTD,
        share_BTk.astype(x_BTD.dtype),
        choice_BTk,
        *(weights[f"experts.{part}"].astype(x_BTD.dtype) for part in ("gate", "up", "down")),
    )
    return out_BTD, RouterLosses(balance=balance, dropped=dropped)


# Axes over which a routed expert's D is sharded; its `expert` axis splits the experts themselves.
_GATHERED = tuple(axis for axis in SHARD_AXES if axis != "expert")


def route(
    router_DE: jax.Array, x_BTD: jax.Array, experts: Experts, real_BT: jax.Array, model: "Model"
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pick each token's experts by the softmax of a linear router, in float32.

    Returns:
        Shares [B, T, k] that weigh the experts' outputs, the chosen experts [B, T, k] (E for
        padding, which no expert takes), and the load-balancing loss.
    """
    logits_BTE = jnp.einsum("btd,de->bte", x_BTD, router_DE.astype(x_BTD.dtype))
    probability_BTE = jax.nn.softmax(logits_BTE.astype(jnp.float32), axis=-1)
    share_BTk, choice_BTk = jax.lax.top_k(probability_BTE, experts.experts_per_token)
    if model.numerics.normalizes_experts:
        share_BTk /= jnp.sum(share_BTk, axis=-1, keepdims=True)
    E = experts.num_experts
    tokens = jnp.maximum(jnp.sum(real_BT), 1)
    chosen_BTE = jnp.sum(jax.nn.one_hot(choice_BTk, E), axis=-2)
    load_E = jnp.sum(chosen_BTE * real_BT[..., None], axis=(0, 1)) / tokens
    mean_E = jnp.sum(probability_BTE * real_BT[..., None], axis=(0, 1)) / tokens
    balance = E * jnp.sum(load_E * mean_E) / experts.experts_per_token
    return share_BTk, jnp.where(real_BT[..., None], choice_BTk, E), balance


def _dropless(rows: _Rows, matrices: _Matrices, how: _How) -> tuple[jax.Array, jax.Array]:
    """One chip's part without dropping: [n, D] to [n, D]."""
    local = how.experts.num_experts // how.ways
    if how.ways > 1:
        rows = _Rows(*(jax.lax.all_gather(part, "expert", tiled=True) for part in rows))
        rows = rows._replace(choice_nk=rows.choice_nk - local * jax.lax.axis_index("expert"))
    choice_m = rows.choice_nk.reshape(-1)
    mine_m = (choice_m >= 0) & (choice_m < local)
    choice_m = jnp.where(mine_m, choice_m, local)  # others' tokens sort behind all of ours
    order_m = jnp.argsort(choice_m)
    token_m = order_m // how.experts.experts_per_token
    sizes = jnp.bincount(choice_m, length=local + 1)[:local].astype(jnp.int32)

    rows_mD = rows.x_nD[token_m]
    gated = named("gate", jax.lax.ragged_dot(rows_mD, matrices.gate, sizes))
    upped = named("up", jax.lax.ragged_dot(rows_mD, matrices.up, sizes))
    out_mD = jax.lax.ragged_dot(how.activation(gated) * upped, matrices.down, sizes)
    weight_m = rows.share_nk.reshape(-1)[order_m]
    # Rows behind the last group belong to other chips; what a kernel leaves there is not ours.
    out_mD = jnp.where(mine_m[order_m][:, None], out_mD * weight_m[:, None], 0)
    y_nD = jnp.zeros_like(rows.x_nD).at[token_m].add(out_mD)
    if how.ways > 1:
        y_nD = jax.lax.psum_scatter(y_nD, "expert", tiled=True)
    return y_nD, jnp.zeros(())


def _with_capacity(rows: _Rows, matrices: _Matrices, how: _How) -> tuple[jax.Array, jax.Array]:
    """One chip's part with C rows an expert: [n, D] to [n, D]; earlier tokens come first."""
    n, D = rows.x_nD.shape
    E, k = how.experts.num_experts, how.experts.experts_per_token
    C = min(n, math.ceil(how.capacity_factor * n * k / E))
    choice_m = rows.choice_nk.reshape(-1)
    taken_mE = jax.nn.one_hot(choice_m, E, dtype=jnp.int32)
    rank_m = jnp.sum((jnp.cumsum(taken_mE, axis=0) - 1) * taken_mE, axis=-1)
    real_m = choice_m < E
    fits_m = real_m & (rank_m < C)
    slot_m = jnp.where(fits_m, choice_m * C + rank_m, E * C)  # beyond the last: dropped
    token_m = jnp.arange(n * k) // k
    sent = jnp.zeros((E * C, D), rows.x_nD.dtype).at[slot_m].set(rows.x_nD[token_m], mode="drop")
    rows_ECD = sent.reshape(E, C, D)
    if how.ways > 1:  # [E, C, D] to [E/ways, ways*C, D]: every chip's rows for our experts
        rows_ECD = jax.lax.all_to_all(rows_ECD, "expert", split_axis=0, concat_axis=1, tiled=True)
    gated = named("gate", jnp.einsum("ecd,edf->ecf", rows_ECD, matrices.gate))
    upped = named("up", jnp.einsum("ecd,edf->ecf", rows_ECD, matrices.up))
    out_ECD = jnp.einsum("ecf,efd->ecd", how.activation(gated) * upped, matrices.down)
    if how.ways > 1:
        out_ECD = jax.lax.all_to_all(out_ECD, "expert", split_axis=1, concat_axis=0, tiled=True)
    out_mD = out_ECD.reshape(E * C, D).at[slot_m].get(mode="fill", fill_value=0)
    y_nD = jnp.sum((out_mD * rows.share_nk.reshape(-1, 1)).reshape(n, k, D), axis=1)
    dropped = jnp.sum(real_m & ~fits_m) / jnp.maximum(jnp.sum(real_m), 1)
    return y_nD, dropped.astype(jnp.float32)


def _gathered(matrix: jax.Array, axis: int) -> jax.Array:
    """A matrix with its sharded D whole; its gradient is reduce-scattered on the way back."""
    whole: jax.Array = jax.lax.all_gather(matrix, _GATHERED, axis=axis, tiled=True)
    return whole


def _activation(model: "Model") -> Activation:
    from muster.training.model import ACTIVATIONS  # noqa: PLC0415

    return ACTIVATIONS[model.numerics.activation]
