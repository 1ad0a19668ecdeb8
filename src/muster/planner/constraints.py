"""What makes a layout legal: one rule, one message.

Each rule says whether some ways of parallelism are possible for a model and, if not, why and what
the nearest possible number is.
"""

from dataclasses import dataclass
from functools import cache
from math import gcd, isqrt

from muster.hardware import Chip
from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    GatedDeltaNet,
    LatentAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Recurrence,
)
from muster.roofline.workload import Workload

# A chip's piece of a sequence is kept at least this long, so that its matmuls still fill the MXU.
SHORTEST_PIECE = 128
# Rows of a tile in the TPU's memory for numbers of two bytes; a shard of fewer rows is padded to it
# and must be copied into place after every gather.
TILE_ROWS = 16
MOST_NAMED = 7


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


def legal_expert_ways(architecture: Architecture, most: int) -> tuple[int, ...]:
    """Every number of expert-parallel ways up to `most`: they divide the experts of all layers."""
    counts = [
        layer.mlp.num_experts
        for layer, _ in architecture.layer_groups
        if isinstance(layer.mlp, Experts)
    ]
    if not counts:
        return (1,)
    return tuple(ways for ways in divisors(gcd(*counts)) if ways <= most)


def legal_sequence_ways(
    architecture: Architecture, workload: Workload, most: int
) -> tuple[int, ...]:
    """Ways to cut a sequence into equal pieces of 128 tokens or more.

    A recurrence hands its state from token to token, so there a sequence stays whole. Heads do not
    matter: keys and values travel, queries stay.
    """
    if recurrent_layers(architecture):
        return (1,)
    most = min(most, workload.sequence_length // SHORTEST_PIECE or 1)
    return tuple(ways for ways in divisors(workload.sequence_length) if ways <= most)


def recurrent_layers(architecture: Architecture) -> int:
    """Layers in which a token waits for the state that the ones before it left."""
    return sum(
        copies
        for layer, copies in architecture.layer_groups
        if isinstance(layer.mixer, Recurrence.__value__)
    )


def legal_stages(architecture: Architecture, most: int) -> tuple[int, ...]:
    """Pipeline stages: at most one a layer, and what divides the layers or is a power of two.

    Embedding and head may count as a layer each (`roofline.pipeline.stage_layers`). Where layers do
    not divide, stages with fewer wait, which the step model counts. The chips do not matter: what
    is possible on few chips must be possible on more.
    """
    layers = architecture.num_layers
    return tuple(
        stages
        for stages in range(1, min(most, layers) + 1)
        if layers % stages == 0 or (layers + 2) % stages == 0 or _is_power_of_two(stages)
    )


@cache
def legal_microbatches(sequences: int) -> tuple[int, ...]:
    """Ways to cut a chip's sequences into equal microbatches."""
    return tuple(divisors(sequences))


def shard_obstacle(architecture: Architecture, chip: Chip, shards: int) -> Obstacle | None:
    """On a TPU, a weight sharded so far that a shard is less than a tile of rows."""
    if chip.kind != "tpu" or shards == 1:
        return None
    most = max(1, architecture.d_model // TILE_ROWS)
    if shards <= most:
        return None
    return Obstacle(
        rule="tile",
        limit=most,
        message=(
            f"{shards}-way sharding leaves {architecture.d_model / shards:g} of D's "
            f"{architecture.d_model} rows a chip, less than a tile of {TILE_ROWS}"
        ),
    )


def nearest_of(legal: tuple[int, ...], asked: int) -> str:
    """The legal numbers around the one that was asked for.

    >>> nearest_of((1, 2, 4, 28), 8), nearest_of(tuple(range(1, 99)), 50)
    ('1, 2, 4, 28', '47, 48, 49, 50, 51, 52, 53')
    """
    if len(legal) > MOST_NAMED:
        nearest = sorted(legal, key=lambda ways: abs(ways - asked))[:MOST_NAMED]
        legal = tuple(sorted(nearest))
    return ", ".join(map(str, legal))


def divisors(number: int) -> list[int]:
    """All divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def smallest_tensor_limit(architecture: Architecture) -> int:
    """The number that tensor-parallel ways must divide: common to all heads and widths."""
    sizes = [
        size
        for layer, _ in architecture.layer_groups
        for size in (_heads(layer.mixer)[0], _width(layer.mlp))
        if size
    ]
    return gcd(*sizes) if sizes else 1


def _mixer_obstacles(mixer: Mixer | None, tensor: int) -> list[Obstacle]:
    heads, what = _heads(mixer)
    if heads and heads % tensor:
        return [
            Obstacle(
                rule="heads", limit=heads, message=f"{heads} {what} do not split {tensor} ways"
            )
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


def _heads(mixer: Mixer | None) -> tuple[int, str]:
    """What of a mixer tensor parallelism splits whole, and its name; 0 where that is nothing."""
    match mixer:
        case Attention() | LatentAttention() | LightningAttention():
            return mixer.num_heads, "heads"
        case Mamba2():
            return mixer.num_heads, "heads of the recurrence"
        case GatedDeltaNet():
            return mixer.num_key_heads, "key heads of the recurrence"
        case Mamba1():
            return mixer.inner, "channels of the recurrence"
        case _:
            return 0, ""


def _width(mlp: Mlp | Experts | None) -> int:
    return mlp.d_ff if mlp else 0
