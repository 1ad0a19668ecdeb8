"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2 and the families that took it over.

Sources: DeepSeek-V2 (arXiv:2405.04434) for the attention, DeepSeek-V3 (arXiv:2412.19437) for the
routing and the multi-token prediction, DeepSeek-V3.2 for the indexer of sparse attention; and the
model classes of Hugging Face transformers 5 for what each family stores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from muster.errors import shorten
from muster.models.architecture import Architecture, Indexer, LatentAttention, Layer
from muster.models.families import common, moe, stack
from muster.models.families.dense import Builder
from muster.models.families.moe import MoeFamily
from muster.models.reader import ConfigReader

type IndexerRule = Callable[[ConfigReader, int], tuple[Indexer | None, ...]]


def no_indexer(_: ConfigReader, layers: int) -> tuple[Indexer | None, ...]:
    """Dense attention everywhere."""
    return (None,) * layers


def own_indexer(reader: ConfigReader, layers: int) -> tuple[Indexer | None, ...]:
    """Sparse attention everywhere, each layer with an indexer of its own (DeepSeek-V3.2)."""
    return (_indexer(reader),) * layers


def shared_indexer(reader: ConfigReader, layers: int) -> tuple[Indexer | None, ...]:
    """Sparse attention everywhere; some layers take over the keys that an earlier one picked."""
    own = _indexer(reader)
    return tuple(replace(own, own=full) for full in _full_indexers(reader, layers))


def _indexer(reader: ConfigReader) -> Indexer:
    return Indexer(
        num_heads=reader.size("index_n_heads"),
        head_dim=reader.size("index_head_dim"),
        top_k=reader.size("index_topk"),
    )


def _full_indexers(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """GLM's schedule: listed, or as a pattern of F and S, or one in every `index_topk_freq`."""
    listed = reader.texts("indexer_types", layers)
    if listed is None and isinstance(reader.raw("index_topk_pattern"), str):
        letters = {"F": "full", "S": "shared"}
        pattern = reader.text("index_topk_pattern") or ""
        listed = tuple(letters.get(letter, letter) for letter in pattern)
    elif listed is None:
        listed = reader.texts("index_topk_pattern", layers)
    if listed is None:
        every = max(reader.count("index_topk_freq"), 1)
        offset = reader.count("index_skip_topk_offset")
        return tuple(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))
    if len(listed) != layers:
        reader.refuse("index_topk_pattern", f"has {len(listed)} letters for {layers} layers")
    for kind in listed:
        if kind not in {"full", "shared"}:
            reader.refuse("indexer_types", f"names {shorten(kind)}; known: full, shared")
    return tuple(kind == "full" for kind in listed)


@dataclass(frozen=True, kw_only=True)
class LatentFamily:
    """What one family has around its latent attention.

    Attributes:
        mlps: the MLPs and experts, as in the table of mixtures.
        indexers: which layers pick the keys that they see.
        value_dim_may_be_null: null (or absent) `v_head_dim` means D / N.
        needs_q_lora: the class has no full query matrix to fall back to.
    """

    mlps: MoeFamily
    indexers: IndexerRule = no_indexer
    value_dim_may_be_null: bool = False
    needs_q_lora: bool = False


def build_latent(
    reader: ConfigReader, name: str, config: Mapping[str, object], *, family: str
) -> Architecture:
    """Build a model of one of `FAMILIES`."""
    del config
    traits = FAMILIES[family]
    number = reader.layers()
    attention = _attention(reader, traits)
    layers = tuple(
        Layer(mixer=replace(attention, indexer=indexer), mlp=mlp)
        for indexer, mlp in zip(
            traits.indexers(reader, number), moe.mlps(reader, number, traits.mlps), strict=True
        )
    )
    rope = common.rope(reader, head_dim=attention.qk_rope_head_dim)
    return stack.predicting_ahead(reader, stack.decoder(reader, name, family, layers, rope=rope))


def _attention(reader: ConfigReader, traits: LatentFamily) -> LatentAttention:
    value_dim = reader.optional_size("v_head_dim")
    if value_dim is None and traits.value_dim_may_be_null:
        value_dim = common.derived_head_dim(reader)
    return LatentAttention(
        num_heads=reader.size("num_attention_heads"),
        q_lora_rank=_query_rank(reader, traits),
        kv_lora_rank=reader.size("kv_lora_rank"),
        qk_nope_head_dim=reader.size("qk_nope_head_dim"),
        qk_rope_head_dim=reader.size("qk_rope_head_dim"),
        v_head_dim=value_dim or reader.size("v_head_dim"),
        bias=reader.flag("attention_bias"),
    )


def _query_rank(reader: ConfigReader, traits: LatentFamily) -> int | None:
    """Rank of the query's factors; null is one full matrix, which a missing key is not."""
    if traits.needs_q_lora:
        return reader.size("q_lora_rank")
    rank = reader.optional_size("q_lora_rank")
    if rank is not None and not reader.has("q_lora_rank"):
        reader.notes.append(
            f"q_lora_rank is missing, so the class's own {rank:,} was taken; "
            "a file that means one full query matrix must say null"
        )
    return rank


def no_layers(_: ConfigReader, layers: int) -> tuple[bool, ...]:
    """No layer has experts."""
    return (False,) * layers


_EXPERTS = MoeFamily(
    experts="n_routed_experts",
    sparse=stack.after_first("first_k_dense_replace"),
    shared=moe.times_expert("n_shared_experts"),
)
_V3 = replace(_EXPERTS, correction_bias=True)
_LISTED = replace(_V3, sparse=stack.by_mlp_layer_types("first_k_dense_replace"))
_DENSE = MoeFamily(sparse=no_layers)

FAMILIES = {
    "deepseek_v2": LatentFamily(mlps=replace(_EXPERTS, mlp_bias="mlp_bias")),
    "deepseek_v3": LatentFamily(mlps=_V3),
    "kimi_k2": LatentFamily(mlps=_V3),
    "sarvam_mla": LatentFamily(mlps=_V3),
    "deepseek_v32": LatentFamily(mlps=_LISTED, indexers=own_indexer, needs_q_lora=True),
    "glm_moe_dsa": LatentFamily(mlps=_LISTED, indexers=shared_indexer, needs_q_lora=True),
    "glm4_moe_lite": LatentFamily(mlps=replace(_V3, sparse=stack.by_mlp_layer_types(1))),
    "minicpm3": LatentFamily(mlps=replace(_DENSE, mlp_bias="mlp_bias"), value_dim_may_be_null=True),
    "youtu": LatentFamily(mlps=_DENSE),
}

BUILDERS: dict[str, Builder] = {family: partial(build_latent, family=family) for family in FAMILIES}

# Published under a name of remote code, but read by the same class: whose defaults hold for it.
SAME_CLASS = {"kimi_k2": "deepseek_v3"}

REFUSED = {
    "longcat_flash": "a token may pick experts that compute nothing, so no exact count is active, "
    "and its class allocates weights for them that no checkpoint has",
    "deepseek_v4": "its compressed and hyper-connected attention is not described here yet",
}
