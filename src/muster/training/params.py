"""Parameters: a flat dict of arrays under the weight table's names, layers stacked in front."""

import math
import zlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from muster.models.architecture import Architecture
from muster.models.numerics import numerics
from muster.sharding.rules import padded_table
from muster.sharding.weight import Weight
from muster.training.partition import LAYERS, Partition

type Params = dict[str, jax.Array]

# Projections that add to the residual stream; their variance falls with depth (GPT-2's rule).
RESIDUAL = ("attention.output", "mlp.down", "experts.down")


def array_shape(weight: Weight) -> tuple[int, ...]:
    """The shape of a weight's array: of all layers together if it is a layer's."""
    return (weight.copies, *weight.shape) if weight.name.startswith(LAYERS) else weight.shape


def abstract_params(
    architecture: Architecture, partition: Partition, dtype: jax.typing.DTypeLike
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, formats and shardings of every parameter, without any memory."""
    shardings = partition.params(architecture)
    return {
        weight.name: jax.ShapeDtypeStruct(
            array_shape(weight), jnp.dtype(dtype), sharding=shardings[weight.name]
        )
        for weight in padded_table(architecture, partition.layout)
    }


def init_params(
    architecture: Architecture, partition: Partition, dtype: jax.typing.DTypeLike, seed: int
) -> Params:
    """Draw fresh parameters, each shard on its own device.

    Matrices are normal with the model's `initializer_range` (projections into the residual stream
    narrower by sqrt(2 L), as GPT-2's), norms one, biases zero. Each weight has a random key of its
    own name, so that the same seed gives the same model under every layout.
    """
    spread = numerics(architecture).initializer_range
    vocab, layers = architecture.vocab_size, architecture.num_layers
    table = padded_table(architecture, partition.layout)

    def draw() -> Params:
        root = jax.random.key(seed)
        return {
            weight.name: _drawn(weight, root, spread, layers, vocab).astype(dtype)
            for weight in table
        }

    params: Params = jax.jit(draw, out_shardings=partition.params(architecture))()
    return params


def _drawn(weight: Weight, root: jax.Array, spread: float, layers: int, vocab: int) -> jax.Array:
    if weight.init != "normal":
        return jnp.full(array_shape(weight), {"ones": 1.0, "zeros": 0.0}[weight.init])
    if weight.name.endswith(RESIDUAL):
        spread /= math.sqrt(2 * layers)
    true_shape = tuple(
        vocab if dim == "vocab" else size
        for dim, size in zip(weight.dims, weight.shape, strict=True)
    )
    stacked = array_shape(weight)[: -len(weight.shape)]
    key = jax.random.fold_in(root, zlib.crc32(weight.name.encode()))
    values = spread * jax.random.normal(key, (*stacked, *true_shape))
    padding = [(0, full - true) for full, true in zip(weight.shape, true_shape, strict=True)]
    return jnp.pad(values, [(0, 0)] * len(stacked) + padding)


def layer_params(params: Mapping[str, jax.Array]) -> Params:
    """The stacked parameters of the layers, under their names without `layers.`."""
    return {
        name.removeprefix(LAYERS): value
        for name, value in params.items()
        if name.startswith(LAYERS)
    }
