"""A run's dims -> an `Architecture`: the catalogue's where the model is known, else from the dims.

Known mixtures of experts and models with windows or latent attention are read from their published
config, because the columns cannot say shared experts, first-k-dense, MLA or windows. Dense models
are built from the row's own dims, which also covers the proxies that change them.
"""

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import muster.models
from muster.errors import MusterError
from muster.models.architecture import (
    LAYER_NORM,
    RMS_NORM,
    Architecture,
    Attention,
    Experts,
    Layer,
    Mlp,
)
from muster.models.hf_config import architecture_from_config, read_config
from muster.sharding.weights import weight_table
from muster.validation.runs import Run

CONFIGS = Path(muster.models.__file__).parent / "data" / "configs"
DEFAULT_VOCAB = 32_000
_MOST_LAYERS = 10_000
_LARGEST = 10**8
_KNOWN = (
    (r"deepseek-?v?2.*(lite|16b)", "DeepSeek-V2-Lite"),
    (r"deepseek-?v?2", "DeepSeek-V2-236B"),
    (r"deepseek-?v?3|deepseek-?r1", "DeepSeek-V3"),
    (r"gpt-?oss-?20b", "gpt-oss-20b"),
    (r"gpt-?oss-?120b", "gpt-oss-120b"),
    (r"qwen3-?30b", "Qwen3-30B-A3B"),
    (r"qwen3-?235b", "Qwen3-235B-A22B"),
    (r"qwen3-?next", "Qwen3-Next-80B-A3B"),
    (r"qwen3-?(14b|32b|8b|4b|1\.7b|0\.6b)", r"Qwen3-\1"),
    (r"mixtral-?8x7b", "Mixtral-8x7B"),
    (r"llama-?4.*scout", "Llama-4-Scout-17B-16E"),
    (r"llama-?4.*maverick", "Llama-4-Maverick-17B-128E"),
    (r"gemma-?2-?2b", "Gemma-2-2B"),
    (r"gemma-?2-?9b", "Gemma-2-9B"),
    (r"gemma-?3-?1b", "Gemma-3-1B"),
    (r"gemma-?3-?12b", "Gemma-3-12B-text"),
    (r"gemma-?3-?27b", "Gemma-3-27B-text"),
    (r"gemma-?4-?26b", "Gemma-4-26B-A4B"),
    (r"glm-?4\.5-?air", "GLM-4.5-Air"),
    (r"glm-?4\.5", "GLM-4.5"),
    (r"kimi-?k2", "Kimi-K2-Instruct"),
    (r"olmoe", "OLMoE-1B-7B"),
    (r"minimax-?m2", "MiniMax-M2.5"),
)
_LAYER_NORM = re.compile(r"gpt|mpt|bloom|nemotron|turing|mt-nlg|opt\b|pax")
_NOT_LAYER_NORM = re.compile(r"gpt-?oss")


def read_architecture(run: Run) -> tuple[Architecture, tuple[str, ...]] | str:
    """The model with remarks on what was taken for granted, or why there is none."""
    known = _from_catalogue(run)
    if known is not None:
        return known, ()
    return _from_dims(run)


def total_params(architecture: Architecture) -> int:
    """Trainable parameters."""
    return sum(weight.count for weight in weight_table(architecture) if weight.trainable)


def _from_catalogue(run: Run) -> Architecture | None:
    """The published model, if the row's dims agree with it; with the row's number of layers."""
    name = run.model.lower().replace("_", "-").replace(" ", "-")
    for pattern, config in _KNOWN:
        match = re.search(pattern, name)
        if not match:
            continue
        published = _published(match.expand(config))
        if published is None:
            return None
        layers = run.n_layers or published.num_layers
        if layers > published.num_layers or (run.d_model or published.d_model) != published.d_model:
            return None
        cut = published.layers[:layers]
        vocab = run.vocab or published.vocab_size
        return replace(published, layers=cut, vocab_size=vocab, name=run.model, mtp_layers=())
    return None


@lru_cache(maxsize=64)
def _published(config: str) -> Architecture | None:
    """A catalogue model's text decoder; None where the catalogue cannot read it."""
    try:
        model = architecture_from_config(read_config(CONFIGS / f"{config}.json"), name=config)
    except MusterError:
        return None
    return replace(model, towers=())


def _from_dims(run: Run) -> tuple[Architecture, tuple[str, ...]] | str:
    needed = {
        "n_layers": run.n_layers,
        "d_model": run.d_model,
        "d_ff": run.d_ff,
        "n_heads": run.n_heads,
    }
    blank = [name for name, value in needed.items() if value is None]
    if blank:
        return f"model dims not stated: {', '.join(blank)}"
    L, D, F, N = (value or 1 for value in needed.values())
    K = run.n_kv_heads or N
    H = run.head_dim or max(1, D // N)
    V = run.vocab or DEFAULT_VOCAB
    if L > _MOST_LAYERS or max(D, F, N, H, V) > _LARGEST:
        return f"dims that no model has: {L} layers, d_model {D}, d_ff {F}, {N} heads of {H}"
    if K > N or N % K:
        return f"{K} KV heads do not divide {N} heads"
    remarks = [] if run.vocab else [f"vocabulary not stated: {V} taken"]
    experts = run.n_experts or 0
    if experts and (run.experts_per_token or 1) > experts:
        return f"{run.experts_per_token} experts a token of {experts} in all"
    if run.gated_mlp is None:
        remarks.append("gated MLP not stated: taken as gated")
    gated = run.gated_mlp is not False
    mlp: Mlp | Experts = Mlp(d_ff=F, gated=gated)
    if experts:
        shared = Mlp(d_ff=F, gated=gated) if re.search(r"llama-?4", run.model.lower()) else None
        mlp = Experts(
            num_experts=experts,
            experts_per_token=run.experts_per_token or 1,
            d_ff=F,
            gated=gated,
            shared=shared,
        )
    positions = run.seq_len or 0 if "learned position" in run.notes.lower() else 0
    norm = LAYER_NORM if _has_layer_norm(run.model.lower()) else RMS_NORM
    layer = Layer(
        mixer=Attention(num_heads=N, num_kv_heads=K, head_dim=H), mlp=mlp, norms=(norm, norm)
    )
    model = Architecture(
        name=run.model or run.id,
        family="gpt" if norm is LAYER_NORM else "llama",
        d_model=D,
        vocab_size=V,
        layers=(layer,) * L,
        tied_embeddings=bool(run.tied_embeddings),
        final_norm=norm,
        position_embeddings=positions,
    )
    if run.tied_embeddings is None and total_params(model) / 1e9 > 1.001 * (_stated(run) or 1e9):
        model = replace(model, tied_embeddings=True)
    return model, tuple(remarks)


def _stated(run: Run) -> float | None:
    """Parameters that the row states, in billions."""
    return run.params_billion or run.params_billion_recomputed


def _has_layer_norm(name: str) -> bool:
    return bool(_LAYER_NORM.search(name)) and not _NOT_LAYER_NORM.search(name)
