"""The LLaMA family, as functions of a dict of arrays.

    x = embedding[tokens]
    for each layer:
        x += attention(norm(x))          queries, keys, values; rotary embedding; grouped heads
        x += mlp(norm(x))                gated: down(act(gate(x)) * up(x)), or a mixture of them
    logits = norm(x) @ head

LLaMA 1 to 3.3, Mistral (sliding window), Qwen2 (biases of Q, K and V), Qwen3 (norms of Q and K),
Mixtral and Qwen3-MoE (experts) differ only in which weights their table has.

Everything here is what one chip does with its own arrays; `exchange` is where it meets others. A
block gathers the tokens that `tensor` splits, multiplies them by the chip's own heads or columns of
F, and scatters the sums. Layers are scanned: one layer is compiled, whatever their number.

Letters, all of one chip: B sequences, T tokens, t those that it holds between blocks (T / tensor
ways), D d_model, F d_ff, N query heads, K KV heads, H head_dim, V words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import jax
import jax.numpy as jnp

from muster.models.architecture import Architecture, Attention, Experts, Layer
from muster.models.numerics import Activation, Numerics, numerics
from muster.planner.step_choices import DEFAULT_STEP, StepChoices
from muster.roofline.remat import Remat
from muster.sharding.rules import MeshAxes
from muster.training.batch import Batch
from muster.training.exchange import gather_tokens, held_alike, scatter_tokens, whole_weight
from muster.training.experts import DROPLESS, Dispatch, RouterLosses, mixture
from muster.training.matmul import einsum_on
from muster.training.params import Params, layer_params
from muster.training.partition import LAYERS, Partition
from muster.training.parts import ranges
from muster.training.recompute import (
    INPUT,
    MIDDLE,
    NORMED,
    named,
    recomputing,
)
from muster.training.rotary import Angles, rotary_angles, rotate
from muster.training.written import gradient_heads_first, gradient_written

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
        attend: the attention kernel of one chip.
        attention: its name and why it was chosen, for people.
        compute_dtype: of matmuls and of the activations between them.
        remat: what a layer computes again in the backward pass.
        dispatch: how tokens reach their experts.
        choices: what changes how the step is written and not what it computes.
    """

    architecture: Architecture
    partition: Partition
    attend: Attend
    compute_dtype: jax.typing.DTypeLike
    remat: Remat = Remat.NONE
    dispatch: Dispatch = DROPLESS
    attention: str = ""
    choices: StepChoices = DEFAULT_STEP

    @cached_property
    def numerics(self) -> Numerics:
        """Epsilons, activation, rotary frequencies."""
        return numerics(self.architecture)

    @cached_property
    def gathered_axes(self) -> Mapping[str, Sequence[MeshAxes]]:
        """Of each parameter's dims, the mesh axes that are gathered where it is used."""
        return self.partition.gathered_axes(self.architecture)

    @cached_property
    def summed_at_once(self) -> Mapping[str, MeshAxes]:
        """Axes along which a layer's gradient is added up before the next layer's is computed."""
        return self.partition.summed_at_once(self.architecture)


def hidden_states(params: Params, batch: Batch, model: Model) -> tuple[jax.Array, RouterLosses]:
    """Run all layers: tokens [B, T] to the normed states [B, t, D] that the head reads.

    Returns:
        The states in the compute dtype, and the routers' losses (zero without experts).
    """
    x_BtD = embedded(params["embedding"], jnp.asarray(batch.tokens), model)
    assert model.architecture.head_dim is not None
    frequencies = model.numerics.rope.inverse_frequencies(model.architecture.head_dim)
    angles = rotary_angles(batch, frequencies)
    losses = RouterLosses.none()
    stacked, first = layer_params(params), 0
    for layer, run in groupby(model.architecture.layers):
        number = len(list(run))
        own = jax.tree.map(lambda array: array[first : first + number], stacked)  # noqa: B023
        x_BtD, losses = _run_of_layers(own, x_BtD, losses, layer, batch, angles, model)
        first += number
    normed = rms_norm(x_BtD, params["final_norm"], model.numerics.norm_eps)
    return normed, losses


def embedded(shard: jax.Array, tokens_BT: jax.Array, model: Model) -> jax.Array:
    """Look tokens up: [B, T] to [B, t, D].

    The table's D is gathered, its words stay split: each chip of `tensor` looks up its own. The
    words are taken in the parts in which their gradient is scattered.
    """
    place = model.partition
    words, d_model = shard.shape[0], model.architecture.d_model
    own_BT = tokens_BT
    if place.layout.tensor > 1:
        own_BT -= words * jax.lax.axis_index("tensor")
    rows = [
        _rows_of(shard[part], own_BT - part.start, model, all_own=part.stop - part.start == words)
        for part in ranges(place.parts((d_model, words)))
    ]
    return scatter_tokens(sum(rows[1:], rows[0]), place)


def _rows_of(shard: jax.Array, words_BT: jax.Array, model: Model, *, all_own: bool) -> jax.Array:
    """The rows [B, T, D] of a part of the table; zeros for words that it does not have."""
    place, axes = model.partition, model.gathered_axes["embedding"]
    # Where every chip has all of D, only the rows that are looked up need rounding.
    whole = not any(axes)
    table_VD = shard if whole else whole_weight(shard, axes, place, model.compute_dtype)
    if all_own and place.layout.tensor == 1:
        return table_VD[words_BT].astype(model.compute_dtype)
    mine_BT = (words_BT >= 0) & (words_BT < len(table_VD))
    rows_BTD = table_VD[jnp.where(mine_BT, words_BT, 0)].astype(model.compute_dtype)
    return jnp.where(mine_BT[..., None], rows_BTD, 0)


def output_shard(params: Params, model: Model) -> jax.Array:
    """This chip's part of what the output matrix is made from: of its own, or of the embedding."""
    return params[_output_name(model)]


def output_matrix(shard: jax.Array, model: Model) -> jax.Array:
    """The output matrix [D, V], from its own shard or, transposed, from the embedding's."""
    name = _output_name(model)
    whole = whole_weight(shard, model.gathered_axes[name], model.partition, model.compute_dtype)
    return whole.T if name == "embedding" else whole


def _output_name(model: Model) -> str:
    return "embedding" if model.architecture.tied_embeddings else "head"


def _run_of_layers(
    stacked: Params,
    x_BtD: jax.Array,
    losses: RouterLosses,
    layer: Layer,
    batch: Batch,
    angles: Angles,
    model: Model,
) -> tuple[jax.Array, RouterLosses]:
    """Scan over equal layers."""

    def one(
        carry: tuple[jax.Array, RouterLosses], shards: Params
    ) -> tuple[tuple[jax.Array, RouterLosses], None]:
        x_BtD, losses = carry
        x_BtD, more = decoder_layer(shards, x_BtD, layer, batch, angles, model)
        return (x_BtD, losses + more), None

    carry, _ = jax.lax.scan(
        recomputing(one, model.remat),
        (x_BtD, losses),
        stacked,
        unroll=model.choices.layers_unrolled,
    )
    return carry


def decoder_layer(
    shards: Params,
    x_BtD: jax.Array,
    layer: Layer,
    batch: Batch,
    angles: Angles,
    model: Model,
) -> tuple[jax.Array, RouterLosses]:
    """Attention and MLP, each added to the residual stream [B, t, D]."""
    assert isinstance(layer.mixer, Attention)
    eps = model.numerics.norm_eps
    weights, x_BtD = _whole(shards, model), named(INPUT, x_BtD)
    normed = named(NORMED, rms_norm(x_BtD, weights["norm_0"], eps))
    x_BtD += named("out", attention(weights, normed, layer.mixer, batch, angles, model))
    x_BtD = named(MIDDLE, x_BtD)
    normed = named(NORMED, rms_norm(x_BtD, weights["norm_1"], eps))
    if isinstance(layer.mlp, Experts):
        out, losses = mixture(weights, normed, layer.mlp, batch, model)
    else:
        out, losses = gated_mlp(weights, normed, model), RouterLosses.none()
    return x_BtD + named("down", out), losses


def _whole(shards: Params, model: Model) -> Params:
    """A layer's weights as its matmuls read them."""

    def whole(name: str, shard: jax.Array) -> jax.Array:
        shard = held_alike(shard, model.summed_at_once.get(LAYERS + name, ()))
        axes = model.gathered_axes[LAYERS + name]
        return whole_weight(shard, axes, model.partition, model.compute_dtype)

    return {name: shard if "norm" in name else whole(name, shard) for name, shard in shards.items()}


def attention(
    weights: Params,
    x_BtD: jax.Array,
    mixer: Attention,
    batch: Batch,
    angles: Angles,
    model: Model,
) -> jax.Array:
    """Grouped-query attention within each document: [B, t, D] to [B, t, D]."""
    place = model.partition
    einsum, x_BTD = einsum_on(place), gather_tokens(x_BtD, place)
    own = _own_kv_head(mixer, model)

    def project(part: str, of: Callable[[jax.Array], jax.Array] = lambda whole: whole) -> jax.Array:
        out = einsum("btd,dnh->btnh", x_BTD, of(weights[f"attention.{part}"]))
        if (bias := weights.get(f"attention.{part}.bias")) is not None:
            out += of(bias)
        return named(part, gradient_written(out, place))

    q_BTNH, k_BTKH, v_BTKH = project("query"), project("key", own), project("value", own)
    if mixer.qk_norm:
        eps = model.numerics.norm_eps
        q_BTNH = rms_norm(q_BTNH, weights["attention.query_norm"], eps)
        k_BTKH = rms_norm(k_BTKH, weights["attention.key_norm"], eps)
    q_BTNH, k_BTKH = rotate(q_BTNH, angles, place), rotate(k_BTKH, angles, place)
    mixed_BTNH = model.attend(q_BTNH, k_BTKH, v_BTKH, batch, mixer.window)
    mixed_BTNH = gradient_heads_first(mixed_BTNH, place)
    out = einsum("btnh,dnh->btd", mixed_BTNH, weights["attention.output"])
    out = scatter_tokens(out, place)
    return _biased(out, weights.get("attention.output.bias"))


def _own_kv_head(mixer: Attention, model: Model) -> Callable[[jax.Array], jax.Array]:
    """What a chip takes of the weights [..., K, H] of keys and values, the whole where it is split.

    With more tensor ways than KV heads, a chip computes the one head that its queries read.
    """
    tensor, K = model.partition.layout.tensor, mixer.num_kv_heads
    if K % tensor == 0:
        return lambda weight: weight

    def take(weight: jax.Array) -> jax.Array:
        head = jax.lax.axis_index("tensor") // (tensor // K)
        return jax.lax.dynamic_slice_in_dim(weight, head, 1, axis=-2)

    return take


def gated_mlp(weights: Params, x_BtD: jax.Array, model: Model) -> jax.Array:
    """down(activation(gate(x)) * up(x)): [B, t, D] to [B, t, D]."""
    place = model.partition
    einsum, x_BTD = einsum_on(place), gather_tokens(x_BtD, place)

    def project(part: str) -> jax.Array:
        out = einsum("btd,df->btf", x_BTD, weights[f"mlp.{part}"])
        out = _biased(out, weights.get(f"mlp.{part}.bias"))
        return named(part, gradient_written(out, place))

    inner_BTF = ACTIVATIONS[model.numerics.activation](project("gate")) * project("up")
    out = einsum("btf,df->btd", inner_BTF, weights["mlp.down"])
    return _biased(scatter_tokens(out, place), weights.get("mlp.down.bias"))


def _biased(out: jax.Array, bias: jax.Array | None) -> jax.Array:
    return out if bias is None else out + bias


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """X / sqrt(mean(x^2) + eps) * scale over the last dim, in float32 (arXiv:1910.07467)."""
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * inverse * scale.astype(jnp.float32)).astype(x.dtype)
