"""What makes a layout legal: one rule, one message.

Each rule says whether some ways of parallelism are possible for a model and, if not, why and what
the nearest possible number is.
"""

from dataclasses import dataclass
from math import gcd

from muster.models.architecture import Architecture, Attention, Experts, LatentAttention, Mixer, Mlp


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """Why some ways of parallelism are not possible; `limit` is what they must divide."""

    rule: str
    message: str
    limit: int


def tensor_obstacles(architecture: Architecture, tensor: int) -> tuple[Obstacle, ...]:
    """Everything that keeps `tensor`-way tensor parallelism from splitting the layers evenly.

    Heads and d_ff must divide. Fewer KV heads than ways are copied (see `kv_copies`), which is
    possible where the ways are a multiple of the KV heads.
    """
    found = [
        obstacle
        for layer, _ in architecture.layer_groups
        for obstacle in (*_mixer_obstacles(layer.mixer, tensor), *_mlp_obstacles(layer.mlp, tensor))
    ]
    return tuple(dict.fromkeys(found))


def kv_copies(architecture: Architecture, tensor: int) -> int:
    """How often K and V exist within a tensor-parallel group: Y / K where Y > K, else once."""
    copies = [
        tensor // layer.mixer.num_kv_heads
        for layer, _ in architecture.layer_groups
        if isinstance(layer.mixer, Attention) and tensor > layer.mixer.num_kv_heads
    ]
    return max(copies, default=1)


def legal_tensor_ways(architecture: Architecture, most: int) -> tuple[int, ...]:
    """Every number of tensor-parallel ways up to `most` that the model's shapes allow."""
    limit = min(most, smallest_tensor_limit(architecture))
    return tuple(ways for ways in range(1, limit + 1) if not tensor_obstacles(architecture, ways))


def smallest_tensor_limit(architecture: Architecture) -> int:
    """The number that tensor-parallel ways must divide: common to all heads and widths."""
    sizes = [
        size
        for layer, _ in architecture.layer_groups
        for size in (_heads(layer.mixer), _width(layer.mlp))
        if size
    ]
    return gcd(*sizes) if sizes else 1


def _mixer_obstacles(mixer: Mixer | None, tensor: int) -> list[Obstacle]:
    heads = _heads(mixer)
    if heads and heads % tensor:
        return [
            Obstacle(rule="heads", limit=heads, message=f"{heads} heads do not split {tensor} ways")
        ]
    if not isinstance(mixer, Attention):
        return []
    kv = mixer.num_kv_heads
    if kv % tensor and tensor % kv:
        return [
            Obstacle(
                rule="kv-heads",
                limit=kv,
                message=f"{kv} KV heads neither split {tensor} ways nor copy evenly to them",
            )
        ]
    return []


def _mlp_obstacles(mlp: Mlp | Experts | None, tensor: int) -> list[Obstacle]:
    width = _width(mlp)
    if width and width % tensor:
        return [
            Obstacle(rule="d_ff", limit=width, message=f"d_ff {width} does not split {tensor} ways")
        ]
    return []


def _heads(mixer: Mixer | None) -> int:
    return mixer.num_heads if isinstance(mixer, Attention | LatentAttention) else 0


def _width(mlp: Mlp | Experts | None) -> int:
    return mlp.d_ff if mlp else 0
