"""The LLaMA family, as functions of a dict of arrays.

    x = embedding[tokens]
    for each layer:
        x += attention(norm(x))          queries, keys, values; rotary embedding; grouped heads
        x += mlp(norm(x))                gated: down(act(gate(x)) * up(x)), or a mixture of them
    logits = norm(x) @ head

LLaMA 1 to 3.3, Mistral (sliding window), Qwen2 (biases of Q, K and V), Qwen3 (norms of Q and K),
Mixtral and Qwen3-MoE (experts) differ only in which weights their table has.

Layers are scanned: one layer is compiled, whatever their number. Shapes are named in letters:
B batch, T tokens of a sequence, D d_model, F d_ff, N query heads, K KV heads, H head_dim.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import jax
import jax.numpy as jnp

from muster.models.architecture import Architecture, Attention, Experts, Layer
from muster.models.numerics import Activation, Numerics, numerics
from muster.roofline.remat import Remat
from muster.training.batch import Batch
from muster.training.experts import DROPLESS, Dispatch, RouterLosses, mixture
from muster.training.params import Params, layer_params
from muster.training.partition import Partition
from muster.training.recompute import named, recomputing

# (queries [B,T,N,H], keys [B,T,K,H], values [B,T,K,H], batch, window) to mixed values [B,T,N,H]
type Attend = Callable[[jax.Array, jax.Array, jax.Array, Batch, int | None], jax.Array]

ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """An architecture on a mesh: everything that `forward` must know beside the arrays.

    Attributes:
        partition: the mesh, and how activations lie on it.
        attend: the attention kernel.
        attention: its name and why it was chosen, for people.
        compute_dtype: of matmuls and of the activations between them.
        remat: what a layer computes again in the backward pass.
        dispatch: how tokens reach their experts.
    """

    architecture: Architecture
    partition: Partition
    attend: Attend
    compute_dtype: jax.typing.DTypeLike
    remat: Remat = Remat.NONE
    dispatch: Dispatch = DROPLESS
    attention: str = ""

    @cached_property
    def numerics(self) -> Numerics:
        """Epsilons, activation, rotary frequencies."""
        return numerics(self.architecture)


def hidden_states(params: Params, batch: Batch, model: Model) -> tuple[jax.Array, RouterLosses]:
    """Run all layers: tokens [B, T] to the normed states [B, T, D] that the head reads.

    Returns:
        The states in the compute dtype, and the routers' losses (zero without experts).
    """
    place = model.partition
    # The table's D is gathered, its V stays split: looking up D in pieces would leave every chip
    # with a slice of everyone's tokens, which costs more to turn round than the table does.
    table_VD = jax.lax.with_sharding_constraint(
        params["embedding"].astype(model.compute_dtype), place.named("tensor", None)
    )
    x_BTD = jax.lax.with_sharding_constraint(table_VD[batch.tokens], place.whole_tokens)
    x_BTD = jax.lax.with_sharding_constraint(x_BTD, place.residual)
    angles = rotary_angles(batch, model)
    losses = RouterLosses.none()
    stacked, first = layer_params(params), 0
    for layer, run in groupby(model.architecture.layers):
        number = len(list(run))
        own = jax.tree.map(lambda array: array[first : first + number], stacked)  # noqa: B023
        x_BTD, losses = _run_of_layers(own, x_BTD, losses, layer, batch, angles, model)
        first += number
    normed = rms_norm(x_BTD, params["final_norm"], model.numerics.norm_eps)
    return normed, losses


def output_matrix(params: Params, model: Model) -> jax.Array:
    """The output matrix [D, V]: its own, or the embedding's transpose where they are tied."""
    return params["embedding"].T if model.architecture.tied_embeddings else params["head"]


def _run_of_layers(
    stacked: Params,
    x_BTD: jax.Array,
    losses: RouterLosses,
    layer: Layer,
    batch: Batch,
    angles: tuple[jax.Array, jax.Array],
    model: Model,
) -> tuple[jax.Array, RouterLosses]:
    """Scan over equal layers."""

    def one(
        carry: tuple[jax.Array, RouterLosses], weights: Params
    ) -> tuple[tuple[jax.Array, RouterLosses], None]:
        x_BTD, losses = carry
        x_BTD, more = decoder_layer(weights, x_BTD, layer, batch, angles, model)
        return (x_BTD, losses + more), None

    carry, _ = jax.lax.scan(recomputing(one, model.remat), (x_BTD, losses), stacked)
    return carry


def decoder_layer(
    weights: Params,
    x_BTD: jax.Array,
    layer: Layer,
    batch: Batch,
    angles: tuple[jax.Array, jax.Array],
    model: Model,
) -> tuple[jax.Array, RouterLosses]:
    """Attention and MLP, each added to the residual stream [B, T, D]."""
    assert isinstance(layer.mixer, Attention)
    place, eps = model.partition, model.numerics.norm_eps
    x_BTD = named("input", x_BTD)
    normed = _gathered(rms_norm(x_BTD, weights["norm_0"], eps), model)
    x_BTD += named("out", attention(weights, normed, layer.mixer, batch, angles, model))
    x_BTD = named("middle", jax.lax.with_sharding_constraint(x_BTD, place.residual))
    normed = rms_norm(x_BTD, weights["norm_1"], eps)
    if isinstance(layer.mlp, Experts):
        out, losses = mixture(weights, normed, layer.mlp, batch, model)
    else:
        out, losses = gated_mlp(weights, _gathered(normed, model), model), RouterLosses.none()
    x_BTD += named("down", out)
    return jax.lax.with_sharding_constraint(x_BTD, place.residual), losses


def attention(
    weights: Params,
    x_BTD: jax.Array,
    mixer: Attention,
    batch: Batch,
    angles: tuple[jax.Array, jax.Array],
    model: Model,
) -> jax.Array:
    """Grouped-query attention within each document: [B, T, D] to [B, T, D]."""
    place, dtype = model.partition, model.compute_dtype

    def project(part: str) -> jax.Array:
        out = jnp.einsum("btd,dnh->btnh", x_BTD, weights[f"attention.{part}"].astype(dtype))
        if (bias := weights.get(f"attention.{part}.bias")) is not None:
            out += bias.astype(dtype)
        return named(part, out)

    q_BTNH, k_BTKH, v_BTKH = project("query"), project("key"), project("value")
    if mixer.qk_norm:
        eps = model.numerics.norm_eps
        q_BTNH = rms_norm(q_BTNH, weights["attention.query_norm"], eps)
        k_BTKH = rms_norm(k_BTKH, weights["attention.key_norm"], eps)
    q_BTNH, k_BTKH = rotate(q_BTNH, angles), rotate(k_BTKH, angles)
    kv = place.kv_heads(mixer.num_kv_heads)
    mixed_BTNH = model.attend(
        jax.lax.with_sharding_constraint(q_BTNH, place.heads),
        jax.lax.with_sharding_constraint(k_BTKH, kv),
        jax.lax.with_sharding_constraint(v_BTKH, kv),
        batch,
        mixer.window,
    )
    out = jnp.einsum("btnh,nhd->btd", mixed_BTNH, weights["attention.output"].astype(dtype))
    if (bias := weights.get("attention.output.bias")) is not None:
        out += bias.astype(dtype)
    return jax.lax.with_sharding_constraint(out, place.residual)


def gated_mlp(weights: Params, x_BTD: jax.Array, model: Model) -> jax.Array:
    """down(activation(gate(x)) * up(x)): [B, T, D] to [B, T, D]."""
    place, dtype = model.partition, model.compute_dtype

    def project(part: str) -> jax.Array:
        out = jnp.einsum("btd,df->btf", x_BTD, weights[f"mlp.{part}"].astype(dtype))
        if (bias := weights.get(f"mlp.{part}.bias")) is not None:
            out += bias.astype(dtype)
        return jax.lax.with_sharding_constraint(named(part, out), place.hidden)

    inner_BTF = ACTIVATIONS[model.numerics.activation](project("gate")) * project("up")
    out = jnp.einsum("btf,fd->btd", inner_BTF, weights["mlp.down"].astype(dtype))
    if (bias := weights.get("mlp.down.bias")) is not None:
        out += bias.astype(dtype)
    return jax.lax.with_sharding_constraint(out, place.residual)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """X / sqrt(mean(x^2) + eps) * scale over the last dim, in float32 (arXiv:1910.07467)."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * inverse * scale.astype(jnp.float32)).astype(x.dtype)


def rotary_angles(batch: Batch, model: Model) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of every position, [B, T, 1, H/2], in float32."""
    head_dim = model.architecture.head_dim
    assert head_dim is not None
    frequencies = jnp.asarray(model.numerics.rope.inverse_frequencies(head_dim), jnp.float32)
    angles = jnp.asarray(batch.positions, jnp.float32)[:, :, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BTNH: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotary embedding (arXiv:2104.09864); pairs are (i, i + H/2), as Hugging Face stores them."""
    cos, sin = angles
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BTNH.dtype)


def _gathered(x_BTD: jax.Array, model: Model) -> jax.Array:
    """The tokens that `tensor` splits between blocks, whole again for a block's matmuls."""
    return jax.lax.with_sharding_constraint(x_BTD, model.partition.whole_tokens)
