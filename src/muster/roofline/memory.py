"""Memory of training: parameters, gradients, optimizer, activations, logits.

    total = parameters + gradients + optimizer + activations + logits

Source: the book's Part 6, "Counting Parameters and FLOPs" (`book_memory`), and Part 4, "Gradient
checkpointing". Between steps, parameters in bf16 with two float32 Adam moments take 2 + 8 = 10 B
each, in float32 4 + 8 = 12, and in bf16 with a float32 master copy 2 + 4 + 8 = 14.

Sharding: state divides by fsdp * tensor * stage, routed experts by the expert ways besides. The
divisions are even: uneven shards, buffers in flight and fragmentation are the planner's.

Legend: D d_model, L layers, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Literal

from muster.errors import UnknownName
from muster.models.architecture import Architecture, Layer
from muster.roofline.remat import Remat, saved_tensors
from muster.sharding.weights import Weight, weight_table

type Optimizer = Literal["adamw", "sgd"]

DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8": 1}
MOMENTS = {"adamw": 2, "sgd": 0}
LAYERS_IN_FLIGHT = 2


def dtype_bytes(name: str) -> int:
    """Bytes of one number.

    Raises:
        UnknownName: no number format is called so.

    >>> dtype_bytes("bf16"), dtype_bytes("f32")
    (2, 4)
    """
    try:
        return DTYPE_BYTES[name]
    except KeyError:
        raise UnknownName("dtype", name, DTYPE_BYTES) from None


@dataclass(frozen=True, kw_only=True)
class StateFormat:
    """In what number formats the training state is kept.

    Attributes:
        gradient_dtype: None where gradients are as the parameters.
        master_copy: whether the optimizer keeps float32 parameters beside the trained ones.
    """

    param_dtype: str = "bf16"
    optimizer: Optimizer = "adamw"
    optimizer_dtype: str = "f32"
    gradient_dtype: str | None = None
    master_copy: bool = False

    @property
    def param_bytes(self) -> int:
        """Bytes per parameter of the parameters themselves."""
        return dtype_bytes(self.param_dtype)

    @property
    def gradient_bytes(self) -> int:
        """Bytes per parameter of the gradients."""
        return dtype_bytes(self.gradient_dtype or self.param_dtype)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes per parameter of the optimizer's moments and master copy."""
        moments = MOMENTS[self.optimizer] * dtype_bytes(self.optimizer_dtype)
        return moments + (dtype_bytes("f32") if self.master_copy else 0)


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes of the training state; `persistent` is what a checkpoint holds."""

    params: int
    gradients: int
    optimizer: int

    @property
    def persistent(self) -> int:
        """What stays between steps: parameters and optimizer."""
        return self.params + self.optimizer

    @property
    def total(self) -> int:
        """All three."""
        return self.persistent + self.gradients


def state_bytes(parameters: int, state: StateFormat) -> StateBytes:
    """Bytes of the training state of `parameters` parameters.

    LLaMA-3.1 405B in float32 with Adam: 12 B per parameter between steps, 4.87 TB.

    >>> state_bytes(405_853_388_800, StateFormat(param_dtype="f32")).persistent
    4870240665600
    """
    return StateBytes(
        params=parameters * state.param_bytes,
        gradients=parameters * state.gradient_bytes,
        optimizer=parameters * state.optimizer_bytes,
    )


def params_per_chip(
    architecture: Architecture, *, fsdp: int = 1, tensor: int = 1, stage: int = 1, expert: int = 1
) -> int:
    """Trainable parameters on one chip, rounded up: routed experts also split over `expert`."""
    ways = fsdp * tensor * stage
    return sum(
        math.ceil(weight.count / (ways * (expert if _is_routed(weight) else 1)))
        for weight in weight_table(architecture)
        if weight.trainable
    )


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """What is kept between forward and backward pass, by where it waits."""

    hbm: int
    host: int

    @property
    def total(self) -> int:
        """Wherever it waits."""
        return self.hbm + self.host


def activation_bytes(
    architecture: Architecture,
    tokens: int,
    remat: Remat,
    *,
    tensor: int = 1,
    stage: int = 1,
    sequence_sharded: bool = True,
    activation_dtype: str = "bf16",
) -> ActivationBytes:
    """Bytes of activations that one chip keeps for the backward pass.

    Args:
        architecture: the model.
        tokens: tokens whose activations are alive on one chip at once.
        remat: what is kept of each layer.
        tensor: tensor-parallel ways; K and V split over at most K of them.
        stage: pipeline stages; a chip holds the layers of one.
        sequence_sharded: whether D-vectors between blocks split over the tensor ways as well, as
            in the book's In[B_X, D_Y] and in Megatron's sequence parallelism.
        activation_dtype: number format of the activations.

    Offloaded activations leave two layers' worth in HBM: one being used, one being copied.
    """
    size = dtype_bytes(activation_dtype)

    def kept(layer: Layer) -> float:
        return sum(
            tensor_.bytes_per_token / tensor_.tensor_ways(tensor, sequence_sharded=sequence_sharded)
            for tensor_ in saved_tensors(architecture, layer, remat, activation_bytes=size)
        )

    per_layer = [(kept(layer), copies) for layer, copies in architecture.layer_groups]
    total = math.ceil(tokens * sum(each * copies for each, copies in per_layer) / stage)
    if not remat.on_host:
        return ActivationBytes(hbm=total, host=0)
    in_flight = math.ceil(tokens * LAYERS_IN_FLIGHT * max(each for each, _ in per_layer))
    return ActivationBytes(hbm=min(in_flight, total), host=total)


def logits_bytes(
    tokens: int, vocab_size: int, *, bytes_per_logit: int = 4, chunks: int = 1, tensor: int = 1
) -> int:
    """Bytes of the logits that are alive at once: tokens * V * bytes / (chunks * tensor ways).

    The derivative of the loss is as large again unless the loss is fused: XLA writes it over the
    logits.

    >>> logits_bytes(8192, 128_256)
    4202692608
    >>> logits_bytes(8192, 128_256, chunks=8)
    525336576
    """
    return math.ceil(tokens / chunks) * math.ceil(vocab_size / tensor) * bytes_per_logit


@dataclass(frozen=True, kw_only=True)
class MemoryPerChip:
    """Bytes on one chip, term by term; `host_activations` wait outside its HBM."""

    params: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    host_activations: int = 0

    @property
    def total(self) -> int:
        """Bytes of HBM."""
        return self.params + self.gradients + self.optimizer + self.activations + self.logits


def memory_per_chip(
    architecture: Architecture,
    *,
    tokens_per_chip: int,
    remat: Remat,
    state: StateFormat,
    fsdp: int = 1,
    tensor: int = 1,
    stage: int = 1,
    expert: int = 1,
    sequence_sharded: bool = True,
    activation_dtype: str = "bf16",
    logits_chunks: int = 1,
) -> MemoryPerChip:
    """Bytes on one chip of a layout.

    Args:
        architecture: the model.
        tokens_per_chip: tokens of the step that one tensor-parallel group holds: the batch over
            every way of splitting it (slice, data, fsdp, sequence, expert).
        remat: the recomputation policy.
        state: number formats of parameters, gradients and optimizer.
        fsdp: ways that shard parameters and batch.
        tensor: ways that shard heads, d_ff and vocabulary.
        stage: pipeline stages.
        expert: ways that shard the experts.
        sequence_sharded: see `activation_bytes`.
        activation_dtype: number format of the activations.
        logits_chunks: parts in which the loss is computed.
    """
    parameters = params_per_chip(architecture, fsdp=fsdp, tensor=tensor, stage=stage, expert=expert)
    held = state_bytes(parameters, state)
    activations = activation_bytes(
        architecture,
        tokens_per_chip,
        remat,
        tensor=tensor,
        stage=stage,
        sequence_sharded=sequence_sharded,
        activation_dtype=activation_dtype,
    )
    return MemoryPerChip(
        params=held.params,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=activations.hbm,
        logits=logits_bytes(
            tokens_per_chip, architecture.vocab_size, chunks=logits_chunks, tensor=tensor
        ),
        host_activations=activations.host,
    )


def fewest_chips(total_bytes: float, hbm_bytes: float) -> int:
    """The fewest chips whose memory holds `total_bytes`, split evenly.

    >>> fewest_chips(11.2e12, 96e9)
    117
    """
    return math.ceil(total_bytes / hbm_bytes)


@dataclass(frozen=True, kw_only=True)
class BookMemory:
    """The book's simplified memory of a training run, in bytes."""

    parameters: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The three terms."""
        return self.parameters + self.optimizer + self.activations

    def per_chip(self, chips: int) -> float:
        """Split evenly."""
        return self.total / chips


def book_memory(
    *, parameters: float, D: int, L: int, tokens: float, checkpoints: int = 2
) -> BookMemory:
    """Parameters 2 B each, Adam 8 B each, activations 2 * D * tokens * checkpoints * L.

    Source: the book's Part 6, "Counting Parameters and FLOPs". No gradients and no logits; the
    checkpoints are D-vectors in bf16.

    LLaMA-3 70B with a batch of 4e6 tokens: 11.2 TB on 117 v5p chips.

    >>> memory = book_memory(parameters=70e9, D=8192, L=80, tokens=4e6)
    >>> f"{memory.activations:.3g} {memory.total:.3g}", fewest_chips(memory.total, 96e9)
    ('1.05e+13 1.12e+13', 117)
    """
    return BookMemory(
        parameters=2 * parameters,
        optimizer=8 * parameters,
        activations=2.0 * D * tokens * checkpoints * L,
    )


def _is_routed(weight: Weight) -> bool:
    return weight.active_share is not None
