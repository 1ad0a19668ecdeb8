"""The weight table: every parameter of an architecture, declared once.

The parameter count, the FLOPs of the matmuls, the bytes on a chip, and later the arrays, their
shardings and their names in a checkpoint all derive from this table, so that they cannot disagree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    ExtraWeight,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Norm,
    ShortConv,
)
from muster.sharding.recurrence import delta_net, lightning, mamba1, mamba2, short_conv
from muster.sharding.weight import (
    LETTERS,
    Component,
    Init,
    Role,
    Weight,
    matmul,
    norm_vectors,
    vector,
)

__all__ = ["LETTERS", "Component", "Init", "Role", "Weight", "mtp_table", "weight_table"]


def weight_table(architecture: Architecture) -> tuple[Weight, ...]:
    """Declare every weight of a model, in the order in which a token meets them.

    Layers with the same weight share one row, whose `copies` says how many they are.
    """
    return (
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
    )


def mtp_table(architecture: Architecture) -> tuple[Weight, ...]:
    """Declare what published checkpoints hold beside the model: multi-token prediction.

    Each such module (DeepSeek-V3, arXiv:2412.19437, section 2.2) norms the hidden state and the
    next token's embedding, joins them by a 2D x D projection, and runs one more layer and norm.
    It shares the model's embedding and head, of which checkpoints store copies.
    """
    D, V = architecture.d_model, architecture.vocab_size
    around = (
        vector("mtp.hidden_norm", "norm", (D,), ("d_model",)),
        vector("mtp.embedding_norm", "norm", (D,), ("d_model",)),
        matmul("mtp.join", "extra", (2 * D, D), ("hidden_and_embedding", "d_model")),
        vector("mtp.final_norm", "norm", (D,), ("d_model",)),
        replace(matmul("mtp.embedding", "embedding", (V, D), ("vocab", "d_model")), role="lookup"),
        matmul("mtp.head", "head", (D, V), ("d_model", "vocab")),
    )
    copies = ("mtp.embedding", "mtp.head")
    return tuple(
        _merged(
            replace(weight, trainable=weight.trainable and weight.name not in copies)
            for layer in architecture.mtp_layers
            for weight in (*around, *_layer(D, layer))
        )
    )


@lru_cache(maxsize=1024)
def layer_weights(d_model: int, layer: Layer) -> tuple[Weight, ...]:
    """The weights of one copy of one layer; the same few layers are asked for all the time."""
    return tuple(_merged(_layer(d_model, layer)))


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
        yield from norm_vectors("embedding_norm", a.embedding_norm, (width,), ("d_model",))


def _head(a: Architecture) -> Iterator[Weight]:
    width = a.embedding_dim or a.d_model
    if a.final_norm:
        yield from norm_vectors("final_norm", a.final_norm, (a.d_model,), ("d_model",))
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
        yield vector("head.bias", "head", (a.vocab_size,), ("vocab",))


def _layer(d_model: int, layer: Layer) -> Iterator[Weight]:
    for index, norm in enumerate(layer.norms):
        yield from norm_vectors(f"layers.norm_{index}", norm, (d_model,), ("d_model",))
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
        case Mamba2():
            yield from mamba2(d_model, mixer)
        case Mamba1():
            yield from mamba1(d_model, mixer)
        case GatedDeltaNet():
            yield from delta_net(d_model, mixer)
        case LightningAttention():
            yield from lightning(d_model, mixer)
        case ShortConv():
            yield from short_conv(d_model, mixer)
        case None:
            pass


def _attention(D: int, a: Attention) -> Iterator[Weight]:
    name = "layers.attention"
    N, K, H = a.num_heads, a.num_kv_heads, a.head_dim
    query, keys = ((N, H), ("heads", "head_dim")), ((K, H), ("kv_heads", "head_dim"))
    value_dim = "head_dim" if a.value_head_dim is None else "v_head_dim"
    values = ((K, a.values_head_dim), ("kv_heads", value_dim))
    projections = [("query", *query, a.query_bias)]
    if a.output_gate:
        projections.append(("gate", *query, a.gate_bias))
    if a.own_kv:
        projections.append(("key", *keys, a.key_bias))
    if a.own_kv and a.own_value:
        projections.append(("value", *values, a.value_bias))
    for part, shape, dims, bias in projections:
        yield matmul(f"{name}.{part}", "attention", (D, *shape), ("d_model", *dims))
        if bias:
            yield vector(f"{name}.{part}.bias", "attention", shape, dims)
    yield matmul(
        f"{name}.output", "attention", (N, a.values_head_dim, D), ("heads", value_dim, "d_model")
    )
    if a.output_bias:
        yield vector(f"{name}.output.bias", "attention", (D,), ("d_model",))
    if a.qk_norm:
        per_head = a.qk_norm_over == "head"
        yield from norm_vectors(
            f"{name}.query_norm", a.qk_norm, *(((H,), ("head_dim",)) if per_head else query)
        )
        if a.own_kv:
            yield from norm_vectors(
                f"{name}.key_norm", a.qk_norm, *(((H,), ("head_dim",)) if per_head else keys)
            )
    if a.sinks:
        yield vector(f"{name}.sinks", "attention", (N,), ("heads",))


def _latent_attention(D: int, a: LatentAttention) -> Iterator[Weight]:
    name = "layers.attention"
    N, H = a.num_heads, a.scores_head_dim
    expanded = a.qk_nope_head_dim + a.v_head_dim
    latent_and_rope = a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank is None:
        yield matmul(f"{name}.query", "attention", (D, N, H), ("d_model", "heads", "head_dim"))
    else:
        yield matmul(f"{name}.query_down", "attention", (D, a.q_lora_rank), ("d_model", "q_lora"))
        if a.bias:
            yield vector(f"{name}.query_down.bias", "attention", (a.q_lora_rank,), ("q_lora",))
        yield from norm_vectors(f"{name}.query_norm", Norm(), (a.q_lora_rank,), ("q_lora",))
        yield matmul(
            f"{name}.query_up", "attention", (a.q_lora_rank, N, H), ("q_lora", "heads", "head_dim")
        )
    yield matmul(f"{name}.kv_down", "attention", (D, latent_and_rope), ("d_model", "kv_lora"))
    if a.bias:
        yield vector(f"{name}.kv_down.bias", "attention", (latent_and_rope,), ("kv_lora",))
    yield from norm_vectors(f"{name}.kv_norm", Norm(), (a.kv_lora_rank,), ("kv_lora",))
    yield matmul(
        f"{name}.kv_up",
        "attention",
        (a.kv_lora_rank, N, expanded),
        ("kv_lora", "heads", "kv_head_dim"),
    )
    yield matmul(
        f"{name}.output",
        "attention",
        (N, a.v_head_dim, D),
        ("heads", "v_head_dim", "d_model"),
    )
    if a.bias:
        yield vector(f"{name}.output.bias", "attention", (D,), ("d_model",))
    if a.head_gate:
        yield matmul(f"{name}.gate", "attention", (D, N), ("d_model", "heads"))
    if a.indexer and a.indexer.own:
        yield from _indexer(D, a, a.indexer)


def _indexer(D: int, a: LatentAttention, indexer: Indexer) -> Iterator[Weight]:
    name = "layers.attention.indexer"
    rank = a.q_lora_rank or D
    heads, dim = indexer.num_heads, indexer.head_dim
    yield matmul(
        f"{name}.query", "attention", (rank, heads, dim), ("q_lora", "index_heads", "index_dim")
    )
    yield matmul(f"{name}.key", "attention", (D, dim), ("d_model", "index_dim"))
    yield from norm_vectors(
        f"{name}.key_norm", Norm(kind="layer", bias=True), (dim,), ("index_dim",)
    )
    yield matmul(f"{name}.weights", "attention", (D, heads), ("d_model", "index_heads"))


def _mlp(name: str, component: Component, D: int, mlp: Mlp) -> Iterator[Weight]:
    for part in ("gate", "up") if mlp.gated else ("up",):
        yield matmul(f"{name}.{part}", component, (D, mlp.d_ff), ("d_model", "d_ff"))
        if mlp.up_bias:
            yield vector(f"{name}.{part}.bias", component, (mlp.d_ff,), ("d_ff",))
    yield matmul(f"{name}.down", component, (mlp.d_ff, D), ("d_ff", "d_model"))
    if mlp.down_bias:
        yield vector(f"{name}.down.bias", component, (D,), ("d_model",))


def _experts(D: int, e: Experts) -> Iterator[Weight]:
    name, share = "layers.experts", (e.experts_per_token, e.num_experts)
    one = Mlp(d_ff=e.d_ff, gated=e.gated, up_bias=e.bias, down_bias=e.bias)
    if e.latent:
        yield matmul(f"{name}.latent_in", "experts", (D, e.latent), ("d_model", "latent"))
        yield matmul(f"{name}.latent_out", "experts", (e.latent, D), ("latent", "d_model"))
    for weight in _mlp(name, "experts", e.latent or D, one):
        yield replace(
            weight,
            shape=(e.num_experts, *weight.shape),
            dims=("experts", *weight.dims),
            active_share=share,
        )
    router = "layers.router"
    yield matmul(router, "experts", (D, e.num_experts), ("d_model", "experts"))
    if e.router_bias:
        yield vector(f"{router}.bias", "experts", (e.num_experts,), ("experts",))
    if e.correction_bias:
        yield replace(
            vector(f"{router}.correction_bias", "experts", (e.num_experts,), ("experts",)),
            trainable=False,
        )
    if e.shared:
        yield from _mlp("layers.shared_experts", "experts", D, e.shared)
    if e.shared_gate:
        yield matmul("layers.shared_experts.scale", "experts", (D, 1), ("d_model", "one"))


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
