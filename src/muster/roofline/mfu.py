"""Model FLOPs utilization, with the convention in its name.

    MFU = (FLOPs per token * tokens per second) / (chips * peak FLOP/s)

An MFU says little without how its FLOPs were counted; at long sequences the conventions differ by
a factor of two. Recomputation never counts: with it the ratio is called HFU.

    6N          6 * active parameters, embeddings included     the book, Part 4
    6N+causal   6N and causal attention, 6 L N H T             MaxText's GPU tables of 2024
    6N+full     6N and full attention, 12 L N H T              PaLM (arXiv:2204.02311), appendix B
    causal      6 * matmul parameters and causal attention     MaxText since 2025, Megatron-Bridge
    full        6 * matmul parameters and full attention       Megatron-LM to 2024, llm-foundry

Matmul parameters leave out the embedding lookup and the norms and count a tied head. Attention is
counted exactly (windows, latent heads, T(T+1)/2 causal pairs): see `flops`.

Legend: L layers, N query heads (N alone: active parameters), H head_dim, T sequence length.
"""

from dataclasses import dataclass
from enum import StrEnum

from muster.models.architecture import Architecture
from muster.roofline.flops import WITHOUT_WEIGHTS, six_n, training_flops
from muster.sharding.weights import weight_table


class Convention(StrEnum):
    """How the FLOPs of an MFU are counted."""

    SIX_N = "6N"
    SIX_N_CAUSAL = "6N+causal"
    SIX_N_FULL = "6N+full"
    CAUSAL = "causal"
    FULL = "full"

    @property
    def all_parameters(self) -> bool:
        """Whether every active parameter counts, embeddings and norms included."""
        return self in {Convention.SIX_N, Convention.SIX_N_CAUSAL, Convention.SIX_N_FULL}

    @property
    def causal_attention(self) -> bool:
        """Whether only the pairs that the causal mask lets through count."""
        return self in {Convention.CAUSAL, Convention.SIX_N_CAUSAL}


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """A utilization and the convention that it follows.

    Attributes:
        fraction: 0.4 for 40%.
    """

    fraction: float
    convention: Convention

    def __str__(self) -> str:
        return f"{100 * self.fraction:.1f}% ({self.convention})"


def active_params(architecture: Architecture) -> int:
    """Trainable parameters that one text token meets: chosen experts only, no vision towers."""
    return sum(
        weight.active_count
        for weight in weight_table(architecture)
        if weight.trainable and weight.component != "tower"
    )


def flops_per_token(
    architecture: Architecture, sequence_length: int, convention: Convention
) -> float:
    """FLOPs per token of one training step as `convention` counts them."""
    parameters = six_n(active_params(architecture)).total
    if convention is Convention.SIX_N:
        return parameters
    count = training_flops(architecture, sequence_length, causal=convention.causal_attention)
    if not convention.all_parameters:
        return count.model_per_token
    attention = sum(count.component(name).total for name in WITHOUT_WEIGHTS)
    return parameters + attention / sequence_length


def mfu(
    *,
    flops_per_token: float,
    tokens_per_second: float,
    chips: int,
    peak_flops: float,
    convention: Convention,
) -> Mfu:
    """Utilization of `chips` that together train on `tokens_per_second`.

    Args:
        flops_per_token: as `convention` counts them.
        tokens_per_second: of all chips together.
        chips: how many; for TPU v2 and v3 a *device* is half a chip.
        peak_flops: dense FLOP/s of one chip in the precision used, not the sparse figure.
        convention: what the result is called.

    LLaMA-2 7B at 9600 tokens/s on an H100:

    >>> print(mfu(flops_per_token=6 * 6_738_415_616, tokens_per_second=9600, chips=1,
    ...           peak_flops=989.4e12, convention=Convention.SIX_N))
    39.2% (6N)
    """
    achieved = flops_per_token * tokens_per_second / chips
    return mfu_from_flops(achieved, peak_flops, convention=convention)


def mfu_from_flops(achieved_flops: float, peak_flops: float, *, convention: Convention) -> Mfu:
    """Utilization where a log prints FLOP/s per device; both figures are of one device.

    A TPU v3 device is a core, half of a chip's 123 TFLOP/s:

    >>> print(mfu_from_flops(36.7e12, 123e12 / 2, convention=Convention.FULL))
    59.7% (full)
    """
    return Mfu(fraction=achieved_flops / peak_flops, convention=convention)
