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

from muster.errors import BadInput
from muster.models.architecture import Experts
from muster.training.batch import Batch
from muster.training.exchange import (
    TOKEN_AXES,
    gather_tokens,
    present,
    scatter_tokens,
    sum_over_tokens,
)
from muster.training.matmul import einsum_on
from muster.training.params import Params
from muster.training.partition import Partition
from muster.training.recompute import DISPATCHED, named

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
    """What is static."""

    experts: Experts
    activation: Activation
    capacity_factor: float
    place: Partition

    @property
    def ways(self) -> int:
        """How many the experts are split."""
        return self.place.layout.expert


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
    weights: Params, x_BtD: jax.Array, experts: Experts, batch: Batch, model: "Model"
) -> tuple[jax.Array, RouterLosses]:
    """The weighted sum of each token's experts: [B, t, D] to [B, t, D], and the router's losses."""
    place = model.partition
    x_BTD = gather_tokens(x_BtD, place)
    B, T, D = x_BTD.shape
    real_BT = jnp.asarray(batch.segments) > 0
    share_BTk, choice_BTk, balance = route(weights["router"], x_BTD, experts, real_BT, model)
    rows = _Rows(
        x_BTD.reshape(B * T, D),
        share_BTk.astype(x_BTD.dtype).reshape(B * T, -1),
        choice_BTk.reshape(B * T, -1),
    )
    how = _How(
        experts=experts,
        activation=_activation(model),
        capacity_factor=model.dispatch.capacity_factor,
        place=place,
    )
    work = _dropless if model.dispatch.kind == "dropless" else _with_capacity
    matrices = _Matrices(*(weights[f"experts.{part}"] for part in ("gate", "up", "down")))
    y_nD, dropped = work(rows, matrices, how)
    chips = math.prod(place.mesh.shape[axis] for axis in present(place, TOKEN_AXES))
    return scatter_tokens(y_nD.reshape(B, T, D), place), RouterLosses(
        balance=balance, dropped=sum_over_tokens(dropped, place) / chips
    )


def route(
    router_DE: jax.Array, x_BTD: jax.Array, experts: Experts, real_BT: jax.Array, model: "Model"
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pick each token's experts by the softmax of a linear router, in float32.

    Returns:
        Shares [B, T, k] that weigh the experts' outputs, the chosen experts [B, T, k] (E for
        padding, which no expert takes), and the load-balancing loss.
    """
    logits_BTE = named("router", jnp.einsum("btd,de->bte", x_BTD, router_DE))
    probability_BTE = jax.nn.softmax(logits_BTE.astype(jnp.float32), axis=-1)
    share_BTk, choice_BTk = jax.lax.top_k(probability_BTE, experts.experts_per_token)
    if model.numerics.normalizes_experts:
        share_BTk /= jnp.sum(share_BTk, axis=-1, keepdims=True)
    E = experts.num_experts
    chosen_BTE = jnp.sum(jax.nn.one_hot(choice_BTk, E), axis=-2)
    sums = [
        jnp.sum(each * real_BT[..., None], axis=(0, 1)) for each in (chosen_BTE, probability_BTE)
    ]
    real, load_E, mean_E = sum_over_tokens((jnp.sum(real_BT), *sums), model.partition)
    tokens = jnp.maximum(real, 1)
    balance = E * jnp.sum(load_E / tokens * mean_E / tokens) / experts.experts_per_token
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

    rows_mD = named(DISPATCHED, rows.x_nD[token_m])
    gated = named("gate", jax.lax.ragged_dot(rows_mD, matrices.gate, sizes))
    upped = named("up", jax.lax.ragged_dot(rows_mD, matrices.up, sizes))
    product_mF = how.activation(gated) * upped
    out_mD = named("expert", jax.lax.ragged_dot(product_mF, matrices.down, sizes))
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
    rows_ECD = named(DISPATCHED, rows_ECD)
    einsum = einsum_on(how.place)
    gated = named("gate", einsum("ecd,edf->ecf", rows_ECD, matrices.gate))
    upped = named("up", einsum("ecd,edf->ecf", rows_ECD, matrices.up))
    product_ECF = how.activation(gated) * upped
    out_ECD = named("expert", einsum("ecf,efd->ecd", product_ECF, matrices.down))
    if how.ways > 1:
        out_ECD = jax.lax.all_to_all(out_ECD, "expert", split_axis=1, concat_axis=0, tiled=True)
    out_mD = out_ECD.reshape(E * C, D).at[slot_m].get(mode="fill", fill_value=0)
    y_nD = jnp.sum((out_mD * rows.share_nk.reshape(-1, 1)).reshape(n, k, D), axis=1)
    dropped = jnp.sum(real_m & ~fits_m) / jnp.maximum(jnp.sum(real_m), 1)
    return y_nD, dropped.astype(jnp.float32)


def _activation(model: "Model") -> Activation:
    from muster.training.model import ACTIVATIONS  # noqa: PLC0415

    return ACTIVATIONS[model.numerics.activation]
