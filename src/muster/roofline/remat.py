"""Recomputation (activation checkpointing): what a layer keeps, and what it computes again.

    policy     kept for the backward pass                       computed again
    none       every tensor that the backward pass reads        nothing
    minimal    the output of every matmul                       norms, RoPE, activation functions
    outputs    layer input and attention output: 2 D-vectors    Q, K, V, attention, gate, up
    full       layer input: 1 D-vector                          those, and the attention output
    offload    as minimal, but in the host's memory             as minimal

Source: the book's Part 4, "Gradient checkpointing", which calls `full` "block remat" and `minimal`
"big matmuls only", and Part 6, whose "2 checkpoints a layer" are `outputs`: the residual stream
after attention and after the MLP, the second of which is the next layer's input. With a plain MLP
and F = 4D, `none` keeps 16 D-vectors, as in Korthikanti et al. (arXiv:2205.05198, section 4.1:
34 bytes, of which 2 are dropout masks, so 16 numbers of 2 bytes); with a gated MLP and F = 3.5D it
is near the book's "20 per layer". Attention is taken to be a fused kernel that keeps its output and
one float32 log-sum-exp a head, never the T x T scores; a recurrence, its inputs and its output,
never its states.

A matmul runs again only where the backward pass reads its result, which is what XLA's dead-code
elimination leaves. The last projections (attention's output, the MLP's down) feed a residual add,
whose derivative needs neither term, so they do not run again. `muster.training` computes an MLP's
product and the rotation of Q and K again even under `none`, as the matmuls read them. PyTorch and
Megatron run the whole block again: `whole_layer=True`, which gives the book's 6 + 2 = 8 FLOPs per
parameter and token.

Legend: D d_model, F d_ff, N query heads, K KV heads, H head_dim, E experts, k experts per token.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from muster.errors import UnknownName
from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    ShortConv,
)
from muster.sharding import weights
from muster.sharding.weight import Weight

OUTSIDE_THE_MIXER = {"mlp", "experts", "norm", "extra", "embedding", "head", "tower"}
SPLIT_BY_TENSOR = {"heads", "kv_heads", "state_heads", "key_heads", "state_inner", "conv_channels"}
MIXING = "mixing"


class Remat(StrEnum):
    """A recomputation policy, by its name on the command line."""

    NONE = "none"
    MINIMAL = "minimal"
    OUTPUTS = "outputs"
    FULL = "full"
    OFFLOAD = "offload"

    @property
    def on_host(self) -> bool:
        """Whether what is kept waits in the host's memory instead of the chip's."""
        return self is Remat.OFFLOAD


def parse_remat(name: str) -> Remat:
    """Find a policy by name.

    Raises:
        UnknownName: no policy is called so.

    >>> parse_remat("full")
    <Remat.FULL: 'full'>
    """
    try:
        return Remat(name.lower())
    except ValueError:
        raise UnknownName("remat policy", name, [policy.value for policy in Remat]) from None


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A tensor that one layer keeps for the backward pass.

    Attributes:
        part: what gives it: of `remat_policy.PARTS`, `input` or `elementwise`.
        elements: numbers per token.
        bytes_per_element: 2 for bf16, 4 for float32.
        most_tensor_ways: over how many tensor-parallel chips its last dim can split; None where it
            is a D-vector, which splits only if activations between blocks are sequence-sharded.
    """

    name: str
    part: str
    elements: int
    bytes_per_element: int = 2
    most_tensor_ways: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token before any sharding."""
        return self.elements * self.bytes_per_element

    def tensor_ways(self, tensor: int, *, sequence_sharded: bool) -> int:
        """Over how many of `tensor` chips this tensor really splits."""
        if self.most_tensor_ways is None:
            return tensor if sequence_sharded else 1
        return min(tensor, self.most_tensor_ways)


def layer_weights(architecture: Architecture, layer: Layer) -> tuple[Weight, ...]:
    """The weights of one copy of one layer."""
    return weights.layer_weights(architecture.d_model, layer)


def saved_tensors(architecture: Architecture, layer: Layer) -> tuple[SavedTensor, ...]:
    """Every tensor per token that the backward pass of `layer` reads, wherever it is kept.

    A policy keeps those of some parts (`RematPolicy.keeps`). A norm counts one D-vector: its output
    where it stands before a block, its input, by the block's name, where it stands after one.
    """
    return tuple(tensor for tensor in _tensors(architecture.d_model, layer) if tensor.elements)


def rerun_matmuls(
    architecture: Architecture, layer: Layer, policy: Remat, *, whole_layer: bool = False
) -> frozenset[str]:
    """Names of the weights whose forward matmul runs again in the backward pass.

    `MIXING` stands for what mixes tokens without weights: attention's products with keys and
    values, a recurrence's scan.

    Args:
        architecture: the model that the layer belongs to.
        layer: the layer.
        policy: the recomputation policy.
        whole_layer: rerun even what nothing reads, as PyTorch's checkpointing does.
    """
    if policy in {Remat.NONE, Remat.MINIMAL, Remat.OFFLOAD}:
        return frozenset()
    matmuls = [w for w in layer_weights(architecture, layer) if w.role == "matmul"]
    rerun = {w.name for w in matmuls}
    if not whole_layer:
        rerun -= {
            w.name for w in matmuls if _ends_a_block(w) and not result_is_read(w, layer, policy)
        }
    return frozenset(rerun | ({MIXING} if layer.mixer else set()))


def part_of(weight: Weight) -> str:
    """The part of a layer (`remat_policy.PARTS`) that a matmul belongs to."""
    last = weight.name.rsplit(".", 1)[-1]
    if weight.component in {"mlp", "experts"}:
        return {"gate": "gate", "down": "down", "latent_out": "down"}.get(last, "up")
    if weight.component == "extra":
        return "up"
    if weight.dims[-1] == "d_model":
        return "out"
    if last.startswith("query") or last == "gate":
        return "query"
    return "value" if last == "value" else "key"


def output_size(weight: Weight) -> int:
    """Numbers per token that a matmul with `weight` gives (of one expert, for experts).

    The contracted dims are those before a final d_model, or else the first.
    """
    sizes = weight.shape[1:] if weight.dims[0] == "experts" else weight.shape
    return sizes[-1] if weight.dims[-1] == "d_model" else math.prod(sizes[1:])


def input_size(weight: Weight) -> int:
    """Numbers per token that a matmul with `weight` takes (of one expert, for experts)."""
    sizes = weight.shape[1:] if weight.dims[0] == "experts" else weight.shape
    return math.prod(sizes) // output_size(weight)


def _ends_a_block(weight: Weight) -> bool:
    return weight.component != "extra" and weight.dims[-1] == "d_model"


def result_is_read(weight: Weight, layer: Layer, policy: Remat) -> bool:
    """Whether the backward pass reads what the last projection of a block gives.

    A router's derivative reads what its experts give, a norm's what stands before it.
    """
    if weight.active_share is not None:
        return True
    if weight.component in {"mlp", "experts"}:
        scaled = isinstance(layer.mlp, Experts) and layer.mlp.shared_gate
        is_shared = weight.name.startswith("layers.shared_experts.")
        return _norms_after_blocks(layer) or (scaled and is_shared)
    return _two_steps(layer) and policy is Remat.FULL


def _two_steps(layer: Layer) -> bool:
    """Whether the MLP reads the mixer's result (a single norm feeds both side by side)."""
    return layer.mixer is not None and layer.mlp is not None and len(layer.norms) != 1


def _norms_after_blocks(layer: Layer) -> bool:
    """Whether blocks are normalized on both sides (Gemma 2 and 3)."""
    return len(layer.norms) > 2


def _vector(name: str, part: str, size: int) -> SavedTensor:
    return SavedTensor(name=name, part=part, elements=size)


def _split(name: str, part: str, size: int, ways: int) -> SavedTensor:
    return SavedTensor(name=name, part=part, elements=size, most_tensor_ways=ways)


def _tensors(D: int, layer: Layer) -> Iterator[SavedTensor]:
    mixer, mlp, weights_ = layer.mixer, layer.mlp, weights.layer_weights(D, layer)
    yield _vector("layer input", "input", D)
    yield from _between_blocks(D, layer)
    yield from _mixer_tensors(mixer, weights_)
    yield from _mixer_elementwise(D, mixer)
    if mlp is not None:
        yield from _mlp_tensors(D, mlp)
        yield from _mlp_elementwise(D, mlp)
    for weight in weights_:
        if weight.component == "extra" and weight.role == "matmul":
            name = weight.name.removeprefix("layers.")
            yield _vector(name, part_of(weight), output_size(weight))


def _between_blocks(D: int, layer: Layer) -> Iterator[SavedTensor]:
    """D-vectors that blocks give and norms take or give."""
    outputs = [_vector("attention output", "out", D)] if _two_steps(layer) else []
    norms = len(layer.norms)
    if _norms_after_blocks(layer):
        if outputs:
            yield _vector("residual after attention", "elementwise", D)
        if layer.mlp is not None:
            outputs.append(_vector("mlp output", "down", D))
        norms -= len(outputs)
    yield from outputs
    for index in range(norms):
        yield _vector(f"norm {index}", "elementwise", D)


def _mixer_elementwise(D: int, mixer: Mixer | None) -> Iterator[SavedTensor]:
    """What stands between a mixer's matmuls."""
    part = "elementwise"
    if isinstance(mixer, Attention):
        N, K, H = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        if mixer.qk_norm:
            yield _split("normed query", part, N * H, N)
            yield _split("normed key", part, K * H if mixer.own_kv else 0, K)
        if mixer.output_gate:
            yield _split("gated context", part, N * H, N)
    elif isinstance(mixer, LatentAttention):
        yield _vector("normed query latent", part, mixer.q_lora_rank or 0)
        yield _vector("normed kv latent", part, mixer.kv_lora_rank)
        yield _split("key", part, mixer.num_heads * mixer.scores_head_dim, mixer.num_heads)
    elif mixer is not None:
        channels = D if isinstance(mixer, ShortConv) else mixer.conv_channels
        yield _split("convolved", part, channels, channels)


def _mlp_elementwise(D: int, mlp: Mlp | Experts) -> Iterator[SavedTensor]:
    """What stands between an MLP's matmuls."""
    if isinstance(mlp, Mlp):
        yield from _activations("mlp", mlp.d_ff, mlp.d_ff, gated=mlp.gated)
        return
    k = mlp.experts_per_token
    yield _vector("dispatched tokens", "elementwise", k * (mlp.latent or D))
    yield from _activations("expert", k * mlp.d_ff, mlp.d_ff, gated=mlp.gated)
    if mlp.shared:
        yield from _activations("shared", mlp.shared.d_ff, mlp.shared.d_ff, gated=mlp.shared.gated)


def _mixer_tensors(mixer: Mixer | None, weights_: Iterable[Weight]) -> Iterator[SavedTensor]:
    """What the mixer's matmuls give, and what its last projection takes."""
    for weight in weights_:
        if weight.component in OUTSIDE_THE_MIXER or weight.role != "matmul":
            continue
        last = _ends_a_block(weight)
        name = "context" if last else weight.name.split(".", 2)[-1]
        part = MIXING if last else part_of(weight)
        size = input_size(weight) if last else output_size(weight)
        split_dim = 0 if last else 1
        if weight.dims[split_dim] in SPLIT_BY_TENSOR:
            yield _split(name, part, size, weight.shape[split_dim])
        else:
            yield _vector(name, part, size)
    if isinstance(mixer, Attention | LatentAttention):
        N = mixer.num_heads
        yield replace(_split("context log-sum-exp", MIXING, N, N), bytes_per_element=4)


def _mlp_tensors(D: int, mlp: Mlp | Experts) -> Iterator[SavedTensor]:
    """What the MLP's matmuls give; with `up` computed again, experts run again to their end."""
    if isinstance(mlp, Mlp):
        yield from _up("mlp", mlp.d_ff, mlp.d_ff, gated=mlp.gated)
        return
    k = mlp.experts_per_token
    yield replace(_vector("router logits", "up", mlp.num_experts), bytes_per_element=4)
    yield from _up("expert", k * mlp.d_ff, mlp.d_ff, gated=mlp.gated)
    yield _vector("expert outputs", "up", k * (mlp.latent or D))
    yield _vector("expert input latent", "up", mlp.latent or 0)
    if mlp.shared:
        yield from _up("shared", mlp.shared.d_ff, mlp.shared.d_ff, gated=mlp.shared.gated)
    if mlp.shared_gate:
        yield _vector("shared output", "down", D)
        yield _vector("shared gate", "up", 1)


def _up(prefix: str, size: int, ways: int, *, gated: bool) -> Iterable[SavedTensor]:
    parts = ("gate", "up") if gated else ("up",)
    return (_split(f"{prefix} {part}", part, size, ways) for part in parts)


def _activations(prefix: str, size: int, ways: int, *, gated: bool) -> Iterable[SavedTensor]:
    """The activation function's value, and for a gated MLP its product with `up`."""
    names = ("activation", "product") if gated else ("activation",)
    return (_split(f"{prefix} {name}", "elementwise", size, ways) for name in names)
