"""What makes a layout legal: one rule, one message.

Each rule says whether some ways of parallelism are possible for a model and, if not, why and what
the nearest possible number is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import gcd, isqrt

from muster.hardware import Chip, Cluster, Switched
from muster.models.architecture import Architecture, Attention, Experts, LatentAttention, Mixer, Mlp
from muster.roofline.workload import Workload

# A chip's piece of a sequence is kept at least this long, so that its matmuls still fill the MXU.
SHORTEST_PIECE = 128
# Rows of a tile in the TPU's memory for numbers of two bytes; a shard of fewer rows is padded to it
# and must be copied into place after every gather.
TILE_ROWS = 16
MOST_WAYS = 1 << 20
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


def legal_sequence_ways(workload: Workload, most: int) -> tuple[int, ...]:
    """Ways to cut a sequence: powers of two, as kernels want, into pieces of 128 tokens or more."""
    return tuple(
        ways
        for ways in _powers_of_two(min(most, workload.sequence_length // SHORTEST_PIECE or 1))
        if workload.sequence_length % ways == 0
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
    """Ways to cut a chip's sequences: whole, or into microbatches of 1, 2, 4, 8 ... of them."""
    return tuple(
        ways for ways in divisors(sequences) if ways == 1 or _is_power_of_two(sequences // ways)
    )


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


def fixed_obstacles(
    architecture: Architecture, cluster: Cluster, workload: Workload, fixed: Mapping[str, int]
) -> Iterator[str]:
    """Why the ways that a user holds fixed leave no layout, with the nearest legal ones."""
    chips, network = cluster.slice.chips, cluster.chip.network
    tensor, expert = fixed.get("tensor", 1), fixed.get("expert", 1)
    sequence, stage = fixed.get("sequence", 1), fixed.get("stage", 1)
    batch = fixed.get("data", 1) * fixed.get("fsdp", 1) * expert
    per_slice = workload.batch_sequences // cluster.slices
    legal = legal_tensor_ways(architecture, smallest_tensor_limit(architecture))
    for obstacle in tensor_obstacles(architecture, tensor):
        yield f"{obstacle.message}; legal tensor ways: {nearest_of(legal, tensor)}"
    if isinstance(network, Switched) and tensor > network.domain_chips:
        yield f"tensor={tensor} leaves the scale-up domain of {network.domain_chips} GPUs"
    if expert not in (legal := legal_expert_ways(architecture, expert + MOST_WAYS)):
        yield f"experts do not split {expert} ways; legal expert ways: {nearest_of(legal, expert)}"
    if sequence not in (legal := legal_sequence_ways(workload, workload.sequence_length)):
        yield (
            f"a sequence is cut into pieces of {SHORTEST_PIECE} tokens or more, a power of two of "
            f"them, not {sequence}; legal sequence ways: {nearest_of(legal, sequence)}"
        )
    if stage not in (legal := legal_stages(architecture, architecture.num_layers)):
        yield (
            f"{architecture.num_layers} layers do not make {stage} stages; legal stages: "
            f"{nearest_of(legal, stage)}"
        )
    elif stage > 1 and not isinstance(network, Switched):
        yield f"stage={stage}: pipelines are planned on GPUs alone"
    if per_slice % batch:
        legal = tuple(divisors(per_slice))
        yield (
            f"{per_slice:,} sequences of a slice do not split {batch} ways; legal batch ways: "
            f"{nearest_of(legal, batch)}"
        )
    if (ways := tensor * batch * sequence * stage) > chips:
        yield f"these ways are {ways:,} chips of a slice of {chips:,}"


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


def _powers_of_two(most: int) -> Iterator[int]:
    ways = 1
    while ways <= most:
        yield ways
        ways *= 2


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
