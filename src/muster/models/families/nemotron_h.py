"""Nemotron-H: a stack of single blocks, each a Mamba-2 mixer, attention, an MLP or experts."""

from collections.abc import Mapping

from muster.errors import shorten
from muster.models.architecture import (
    RMS_NORM,
    Architecture,
    Experts,
    ExtraWeight,
    Layer,
    Mixer,
    Mlp,
)
from muster.models.families import moe, recurrent, stack
from muster.models.families.dense import Builder
from muster.models.families.moe import Heads
from muster.models.reader import MAX_LAYERS, ConfigReader

NEMOTRON_LETTERS = {"M": "recurrent", "*": "full", "-": "mlp", "E": "moe"}


def build_nemotron(reader: ConfigReader, name: str, config: Mapping[str, object]) -> Architecture:
    """Nemotron-H (arXiv:2504.03624): every block is one thing, a mixer, an MLP or experts."""
    del config
    reader = stack.never_tied(reader)
    kinds = _nemotron_kinds(reader)
    bias, parts = reader.flag("mlp_bias"), dict[str, Layer]()
    for kind in dict.fromkeys(kinds):
        mixer: Mixer | None = None
        mlp: Mlp | Experts | None = None
        match kind:
            case "recurrent":
                mixer = recurrent.mamba2(reader, recurrent.NEMOTRON_KEYS)
            case "full":
                mixer = moe.attentions(reader, 1, Heads())[0]
            case "mlp":
                mlp = _ungated(reader.size("intermediate_size"), bias=bias)
            case _:
                mlp = _nemotron_experts(reader, bias=bias)
        extra = _latent_biases(reader, mlp) if bias and isinstance(mlp, Experts) else ()
        parts[kind] = Layer(mixer=mixer, mlp=mlp, norms=(RMS_NORM,), extra=extra)
    return stack.decoder(reader, name, "nemotron_h", tuple(parts[kind] for kind in kinds))


def _ungated(d_ff: int, *, bias: bool) -> Mlp:
    return Mlp(d_ff=d_ff, gated=False, up_bias=bias, down_bias=bias)


def _nemotron_experts(reader: ConfigReader, *, bias: bool) -> Experts:
    return Experts(
        num_experts=reader.size("n_routed_experts"),
        experts_per_token=reader.size("num_experts_per_tok"),
        d_ff=reader.size("moe_intermediate_size"),
        gated=False,
        correction_bias=True,
        shared=_ungated(reader.size("moe_shared_expert_intermediate_size"), bias=bias),
        latent=reader.optional_size("moe_latent_size"),
    )


def _latent_biases(reader: ConfigReader, experts: Experts) -> tuple[ExtraWeight, ...]:
    if experts.latent is None:
        return ()
    sizes = {"latent_in": (experts.latent, "latent"), "latent_out": _d_model(reader)}
    return tuple(
        ExtraWeight(name=f"experts.{name}.bias", shape=(size,), dims=(dim,))
        for name, (size, dim) in sizes.items()
    )


def _d_model(reader: ConfigReader) -> tuple[int, str]:
    return reader.size("hidden_size"), "d_model"


def _nemotron_kinds(reader: ConfigReader) -> tuple[str, ...]:
    """Block by block, from a list or from letters; the number of layers follows from it."""
    blocks = reader.raw("layers_block_type") if reader.has("layers_block_type") else None
    pattern = reader.text("hybrid_override_pattern")
    if blocks is None and pattern is not None:
        unknown = set(pattern) - set(NEMOTRON_LETTERS)
        if unknown or not 0 < len(pattern) <= MAX_LAYERS:
            reader.refuse(
                "hybrid_override_pattern",
                f"is {shorten(pattern)}; it must be letters of M (Mamba), * (attention), - (MLP), "
                "E (experts)",
            )
        return tuple(NEMOTRON_LETTERS[letter] for letter in pattern)
    if blocks is None:
        reader.fill("layers_block_type", NEMOTRON_USUAL)
        return NEMOTRON_USUAL
    number = len(blocks) if isinstance(blocks, list) else 0
    return stack.layer_kinds(reader, number, lambda _: "recurrent", "layers_block_type")


NEMOTRON_USUAL = ("recurrent", "moe", "full", "mlp")

BUILDERS: dict[str, Builder] = {"nemotron_h": build_nemotron}
