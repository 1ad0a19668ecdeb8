"""Inputs that several tests share: the book's cases and constants, and architectures."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Mamba2,
    Mlp,
    Norm,
)
from muster.models.hf_config import architecture_from_config, read_config
from muster.roofline.communication import Widths

TESTS = Path(__file__).parent.parent
CONFIGS = TESTS.parent / "src/muster/models/data/configs"

# The book's constants for v5p; its batch in the sharding questions, and in the memory table.
C, W_ICI, W_DCN, HBM = 4.59e14, 1.8e11, 6.25e9, 96e9
ALPHA = C / W_ICI
BATCH, BATCH_OF_MEMORY_TABLE, CORPUS = 4 * 1024**2, 4e6, 15e12
POD = 16 * 20 * 28
F_70B, F_405B = Widths(stored=28672, active=28672), Widths(stored=53248, active=53248)


@dataclass(frozen=True, kw_only=True)
class BookCase:
    id: str
    tol: float
    expect: dict[str, float] = field(default_factory=dict)

    def agrees(self, key: str, value: float) -> bool:
        expected = self.expect[key]
        return abs(value - expected) <= self.tol * abs(expected)


@cache
def book() -> dict[str, BookCase]:
    content = tomllib.loads((TESTS / "data/book_section6.toml").read_text(encoding="utf-8"))
    return {
        case["id"]: BookCase(id=case["id"], tol=case["tol"], expect=case["expect"])
        for case in content["case"]
    }


@cache
def published(name: str) -> Architecture:
    return architecture_from_config(read_config(CONFIGS / f"{name}.json"), name=name)


def decoder(
    layers: tuple[Layer, ...], *, D: int, V: int, tied: bool = False, name: str = "test"
) -> Architecture:
    return Architecture(
        name=name, family="test", d_model=D, vocab_size=V, layers=layers, tied_embeddings=tied
    )


def dense(
    *,
    L: int,
    D: int,
    F: int,
    N: int,
    K: int,
    H: int,
    V: int,
    gated: bool = True,
    tied: bool = False,
) -> Architecture:
    layer = Layer(
        mixer=Attention(num_heads=N, num_kv_heads=K, head_dim=H), mlp=Mlp(d_ff=F, gated=gated)
    )
    return decoder((layer,) * L, D=D, V=V, tied=tied)


def mixture(
    *, L: int, D: int, F: int, N: int, K: int, H: int, V: int, E: int, k: int
) -> Architecture:
    layer = Layer(
        mixer=Attention(num_heads=N, num_kv_heads=K, head_dim=H),
        mlp=Experts(num_experts=E, experts_per_token=k, d_ff=F),
    )
    return decoder((layer,) * L, D=D, V=V)


@cache
def gemma_3_12b_text() -> Architecture:
    def layer(window: int | None) -> Layer:
        mixer = Attention(num_heads=16, num_kv_heads=8, head_dim=256, qk_norm=Norm(), window=window)
        return Layer(mixer=mixer, mlp=Mlp(d_ff=15360), norms=(Norm(),) * 4)

    block = (*(layer(1024),) * 5, layer(None))
    return decoder(block * 8, D=3840, V=262144, tied=True)


@cache
def deepseek_v3(top_k: int | None = None) -> Architecture:
    mixer = LatentAttention(
        num_heads=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        indexer=Indexer(num_heads=64, head_dim=128, top_k=top_k) if top_k else None,
    )
    experts = Experts(
        num_experts=256,
        experts_per_token=8,
        d_ff=2048,
        correction_bias=True,
        shared=Mlp(d_ff=2048),
    )
    first = (Layer(mixer=mixer, mlp=Mlp(d_ff=18432)),) * 3
    return decoder((*first, *(Layer(mixer=mixer, mlp=experts),) * 58), D=7168, V=129280)


MIXERS = (
    Attention(num_heads=8, num_kv_heads=2, head_dim=16),
    Attention(num_heads=8, num_kv_heads=8, head_dim=16, window=64, qk_norm=Norm()),
    Attention(num_heads=4, num_kv_heads=1, head_dim=32, window=48, chunked=True, output_gate=True),
    LatentAttention(
        num_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        indexer=Indexer(num_heads=2, head_dim=8, top_k=32),
    ),
    Mamba2(num_heads=8, head_dim=16, state_size=16, num_groups=2, conv_width=4),
    GatedDeltaNet(
        num_key_heads=4, num_value_heads=8, key_head_dim=16, value_head_dim=16, conv_width=4
    ),
    None,
)
MLPS = (
    Mlp(d_ff=256),
    Mlp(d_ff=512, gated=False),
    Experts(num_experts=8, experts_per_token=2, d_ff=64),
    Experts(
        num_experts=16,
        experts_per_token=4,
        d_ff=32,
        shared=Mlp(d_ff=64),
        shared_gate=True,
        latent=64,
    ),
    None,
)
LAYERS = st.builds(
    Layer,
    mixer=st.sampled_from(MIXERS),
    mlp=st.sampled_from(MLPS),
    norms=st.integers(1, 4).map(lambda number: (Norm(),) * number),
)


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    layers = draw(st.lists(LAYERS, min_size=1, max_size=4))
    return decoder(
        tuple(layers),
        D=draw(st.sampled_from([64, 128])),
        V=draw(st.sampled_from([100, 1000])),
        tied=draw(st.booleans()),
    )
