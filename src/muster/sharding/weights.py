"""The weight table: every parameter of an architecture, declared once.

The parameter count, the FLOPs of the matmuls, the bytes on a chip, and later the arrays, their
shardings and their names in a checkpoint all derive from this table, so that they cannot disagree.

Logical dims and their letters: layers L, d_model D, d_ff F, heads N, kv_heads K, head_dim H,
vocab V, experts E.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    ExtraWeight,
    Indexer,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    Norm,
)

type Component = Literal[
    "embedding", "attention", "mlp", "experts", "norm", "head", "extra", "tower"
]
type Role = Literal["matmul", "lookup", "vector"]
type Init = Literal["normal", "ones", "zeros"]

LETTERS = {
    "d_model": "D",
    "d_ff": "F",
    "heads": "N",
    "kv_heads": "K",
    "head_dim": "H",
    "vocab": "V",
    "experts": "E",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One named parameter tensor, and how many layers have one of this shape.

    Attributes:
        shape: sizes of one copy, without the layer axis.
        dims: logical dim of each size.
        role: `matmul` costs 2 FLOPs a parameter and token, `lookup` and `vector` none that count.
        copies: layers that carry one.
        active_share: (used, of) experts for a routed expert's weight, else None.
        trainable: False for a buffer that a checkpoint stores but no gradient reaches.
    """

    name: str
    component: Component
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    role: Role = "matmul"
    init: Init = "normal"
    copies: int = 1
    active_share: tuple[int, int] | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        """Hold the invariant that every size has a dim."""
        assert len(self.shape) == len(self.dims), self

    @property
    def size(self) -> int:
        """Parameters of one copy."""
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.size

    @property
    def active_count(self) -> int:
        """Parameters that one token meets, of all copies."""
        if self.active_share is None:
            return self.count
        used, of = self.active_share
        return self.count * used // of

    def formula(self, num_layers: int) -> str:
        """The count as a product, e.g. `L*D*N*H`; sizes without a letter stand as numbers."""
        copies = (
            [] if self.copies == 1 else ["L" if self.copies == num_layers else str(self.copies)]
        )
        sizes = [
            LETTERS.get(dim, str(size)) for dim, size in zip(self.dims, self.shape, strict=True)
        ]
        return "*".join(copies + sizes)


def weight_table(architecture: Architecture) -> tuple[Weight, ...]:
    """Declare every weight of a model, in the order in which a token meets them.

    Layers with the same weight share one row, whose `copies` says how many they are.
    """
    return tuple(
        [
            *_embedding(architecture),
            *_merged(
                replace(weight, copies=copies)
                for layer, copies in architecture.layer_groups
                for weight in _layer(architecture.d_model, layer)
            ),
            *_head(architecture),
            *_extra("extra", "", architecture.extra),
            *(
                weight
                for tower in architecture.towers
                for weight in _extra("tower", f"{tower.name}.", tower.weights)
            ),
        ]
    )


def _merged(weights: Iterable[Weight]) -> Iterator[Weight]:
    """Add up the copies of weights that are otherwise the same, first seen first."""
    copies: dict[Weight, int] = {}
    for weight in weights:
        key = replace(weight, copies=1)
        copies[key] = copies.get(key, 0) + weight.copies
    return (replace(weight, copies=number) for weight, number in copies.items())


def _embedding(a: Architecture) -> Iterator[Weight]:
    width = a.embedding_dim or a.d_model
    yield Weight(
        name="embedding",
        component="embedding",
        shape=(a.vocab_size, width),
        dims=("vocab", "d_model"),
        role="lookup",
    )
    if a.position_embeddings:
        yield Weight(
            name="position_embedding",
            component="embedding",
            shape=(a.position_embeddings, a.d_model),
            dims=("positions", "d_model"),
            role="lookup",
        )
    if width != a.d_model:
        yield Weight(
            name="embedding_in",
            component="embedding",
            shape=(width, a.d_model),
            dims=("embedding", "d_model"),
        )
    if a.embedding_norm:
        yield from _norm("embedding_norm", a.embedding_norm, (width,), ("d_model",))


def _head(a: Architecture) -> Iterator[Weight]:
    width = a.embedding_dim or a.d_model
    if a.final_norm:
        yield from _norm("final_norm", a.final_norm, (a.d_model,), ("d_model",))
    if width != a.d_model:
        yield Weight(
            name="embedding_out",
            component="head",
            shape=(a.d_model, width),
            dims=("d_model", "embedding"),
        )
    if not a.tied_embeddings:
        yield Weight(
            name="head", component="head", shape=(width, a.vocab_size), dims=("d_model", "vocab")
        )
    if a.head_bias:
        yield _vector("head.bias", "head", (a.vocab_size,), ("vocab",))


def _layer(d_model: int, layer: Layer) -> Iterator[Weight]:
    for index, norm in enumerate(layer.norms):
        yield from _norm(f"layers.norm_{index}", norm, (d_model,), ("d_model",))
    yield from _mixer(d_model, layer.mixer)
    match layer.mlp:
        case Mlp():
            yield from _mlp("layers.mlp", "mlp", d_model, layer.mlp)
        case Experts():
            yield from _experts(d_model, layer.mlp)
        case None:
            pass
    yield from _extra("extra", "layers.", layer.extra)


def _mixer(d_model: int, mixer: Mixer | None) -> Iterator[Weight]:
    match mixer:
        case Attention():
            yield from _attention(d_model, mixer)
        case LatentAttention():
            yield from _latent_attention(d_model, mixer)
        case None:
            pass


def _attention(D: int, a: Attention) -> Iterator[Weight]:  # noqa: N803
    name = "layers.attention"
    N, K, H = a.num_heads, a.num_kv_heads, a.head_dim  # noqa: N806
    query, keys = ((N, H), ("heads", "head_dim")), ((K, H), ("kv_heads", "head_dim"))
    projections = [("query", *query, a.query_bias)]
    if a.output_gate:
        projections.append(("gate", *query, a.query_bias))
    if a.own_kv:
        projections.append(("key", *keys, a.key_bias))
    if a.own_kv and a.own_value:
        projections.append(("value", *keys, a.value_bias))
    for part, shape, dims, bias in projections:
        yield _matmul(f"{name}.{part}", "attention", (D, *shape), ("d_model", *dims))
        if bias:
            yield _vector(f"{name}.{part}.bias", "attention", shape, dims)
    yield _matmul(f"{name}.output", "attention", (N, H, D), ("heads", "head_dim", "d_model"))
    if a.output_bias:
        yield _vector(f"{name}.output.bias", "attention", (D,), ("d_model",))
    if a.qk_norm:
        per_head = a.qk_norm_over == "head"
        yield from _norm(
            f"{name}.query_norm", a.qk_norm, *(((H,), ("head_dim",)) if per_head else query)
        )
        if a.own_kv:
            yield from _norm(
                f"{name}.key_norm", a.qk_norm, *(((H,), ("head_dim",)) if per_head else keys)
            )
    if a.sinks:
        yield _vector(f"{name}.sinks", "attention", (N,), ("heads",))


def _latent_attention(D: int, a: LatentAttention) -> Iterator[Weight]:  # noqa: N803
    name = "layers.attention"
    N, H = a.num_heads, a.scores_head_dim  # noqa: N806
    expanded = a.qk_nope_head_dim + a.v_head_dim
    latent_and_rope = a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank is None:
        yield _matmul(f"{name}.query", "attention", (D, N, H), ("d_model", "heads", "head_dim"))
    else:
        yield _matmul(f"{name}.query_down", "attention", (D, a.q_lora_rank), ("d_model", "q_lora"))
        if a.bias:
            yield _vector(f"{name}.query_down.bias", "attention", (a.q_lora_rank,), ("q_lora",))
        yield from _norm(f"{name}.query_norm", Norm(), (a.q_lora_rank,), ("q_lora",))
        yield _matmul(
            f"{name}.query_up", "attention", (a.q_lora_rank, N, H), ("q_lora", "heads", "head_dim")
        )
    yield _matmul(f"{name}.kv_down", "attention", (D, latent_and_rope), ("d_model", "kv_lora"))
    if a.bias:
        yield _vector(f"{name}.kv_down.bias", "attention", (latent_and_rope,), ("kv_lora",))
    yield from _norm(f"{name}.kv_norm", Norm(), (a.kv_lora_rank,), ("kv_lora",))
    yield _matmul(
        f"{name}.kv_up",
        "attention",
        (a.kv_lora_rank, N, expanded),
        ("kv_lora", "heads", "kv_head_dim"),
    )
    yield _matmul(
        f"{name}.output",
        "attention",
        (N, a.v_head_dim, D),
        ("heads", "v_head_dim", "d_model"),
    )
    if a.bias:
        yield _vector(f"{name}.output.bias", "attention", (D,), ("d_model",))
    if a.indexer:
        yield from _indexer(D, a, a.indexer)


def _indexer(D: int, a: LatentAttention, indexer: Indexer) -> Iterator[Weight]:  # noqa: N803
    name = "layers.attention.indexer"
    rank = a.q_lora_rank or D
    heads, dim = indexer.num_heads, indexer.head_dim
    yield _matmul(
        f"{name}.query", "attention", (rank, heads, dim), ("q_lora", "index_heads", "index_dim")
    )
    yield _matmul(f"{name}.key", "attention", (D, dim), ("d_model", "index_dim"))
    yield from _norm(f"{name}.key_norm", Norm(kind="layer", bias=True), (dim,), ("index_dim",))
    yield _matmul(f"{name}.weights", "attention", (D, heads), ("d_model", "index_heads"))


def _mlp(name: str, component: Component, D: int, mlp: Mlp) -> Iterator[Weight]:  # noqa: N803
    for part in ("gate", "up") if mlp.gated else ("up",):
        yield _matmul(f"{name}.{part}", component, (D, mlp.d_ff), ("d_model", "d_ff"))
        if mlp.up_bias:
            yield _vector(f"{name}.{part}.bias", component, (mlp.d_ff,), ("d_ff",))
    yield _matmul(f"{name}.down", component, (mlp.d_ff, D), ("d_ff", "d_model"))
    if mlp.down_bias:
        yield _vector(f"{name}.down.bias", component, (D,), ("d_model",))


def _experts(D: int, e: Experts) -> Iterator[Weight]:  # noqa: N803
    name, share = "layers.experts", (e.experts_per_token, e.num_experts)
    one = Mlp(d_ff=e.d_ff, gated=e.gated, up_bias=e.bias, down_bias=e.bias)
    for weight in _mlp(name, "experts", D, one):
        yield replace(
            weight,
            shape=(e.num_experts, *weight.shape),
            dims=("experts", *weight.dims),
            active_share=share,
        )
    router = "layers.router"
    yield _matmul(router, "experts", (D, e.num_experts), ("d_model", "experts"))
    if e.router_bias:
        yield _vector(f"{router}.bias", "experts", (e.num_experts,), ("experts",))
    if e.correction_bias:
        yield replace(
            _vector(f"{router}.correction_bias", "experts", (e.num_experts,), ("experts",)),
            trainable=False,
        )
    if e.shared:
        yield from _mlp("layers.shared_experts", "experts", D, e.shared)
    if e.shared_gate:
        yield _matmul("layers.shared_experts.scale", "experts", (D, 1), ("d_model", "one"))


def _extra(component: Component, prefix: str, extra: Iterable[ExtraWeight]) -> Iterator[Weight]:
    for weight in extra:
        yield Weight(
            name=prefix + weight.name,
            component=component,
            shape=weight.shape,
            dims=weight.dims,
            role="matmul" if weight.matmul else "vector",
            trainable=weight.trainable,
        )


def _matmul(
    name: str, component: Component, shape: tuple[int, ...], dims: tuple[str, ...]
) -> Weight:
    return Weight(name=name, component=component, shape=shape, dims=dims)


def _vector(
    name: str, component: Component, shape: tuple[int, ...], dims: tuple[str, ...]
) -> Weight:
    return Weight(
        name=name, component=component, shape=shape, dims=dims, role="vector", init="zeros"
    )


def _norm(name: str, norm: Norm, shape: tuple[int, ...], dims: tuple[str, ...]) -> Iterator[Weight]:
    if norm.scale:
        yield replace(_vector(name, "norm", shape, dims), init="ones")
    if norm.bias:
        yield _vector(f"{name}.bias", "norm", shape, dims)
