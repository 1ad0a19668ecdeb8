"""What the builders of mixed stacks share: rules that say something of every layer, and the frame.

A *rule* reads the config and answers once per layer: is it sparse, what window does it see. The
rules are small functions, so that a family is a choice of rules and not a loop of its own.
"""

from collections.abc import Callable
from dataclasses import replace

from muster.errors import shorten
from muster.models.architecture import RMS_NORM, Architecture, Layer, Mlp, Norm, Rope
from muster.models.reader import MAX_SIZE, ConfigReader

type LayerRule = Callable[[ConfigReader, int], tuple[bool, ...]]
type WindowRule = Callable[[ConfigReader, int], tuple[int | None, ...]]

MAX_MTP_LAYERS = 64

# Names that Hugging Face has used for one kind of layer, old and new.
LAYER_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
    "mlp": "mlp",
    "moe": "moe",
}


def decoder(
    reader: ConfigReader,
    name: str,
    family: str,
    layers: tuple[Layer, ...],
    *,
    rope: Rope | None = None,
    final_norm: Norm = RMS_NORM,
) -> Architecture:
    """Put embedding and head around `layers`, from the keys that all families share."""
    return Architecture(
        name=name,
        family=family,
        d_model=reader.size("hidden_size"),
        vocab_size=reader.size("vocab_size"),
        layers=layers,
        tied_embeddings=reader.flag("tie_word_embeddings"),
        final_norm=final_norm,
        context_length=reader.optional_size("max_position_embeddings"),
        rope=rope,
    )


def never_tied(reader: ConfigReader) -> ConfigReader:
    """The reader of a class that has a head of its own whatever the file says."""
    if reader.flag("tie_word_embeddings"):
        reader.notes.append("tie_word_embeddings is true, but this class never ties its head")
    return reader.narrowed({"tie_word_embeddings": False})


def predicting_ahead(reader: ConfigReader, architecture: Architecture) -> Architecture:
    """Name the multi-token-prediction layers that a checkpoint holds beside the model.

    They are copies of the last layer with a projection of their own (see `mtp_table` in sharding).
    """
    extra = reader.optional_count("num_nextn_predict_layers") or 0
    if not extra:
        return architecture
    if extra > MAX_MTP_LAYERS:
        reader.refuse(
            "num_nextn_predict_layers", f"is {extra:,}; at most {MAX_MTP_LAYERS} are known"
        )
    reader.notes.append(
        f"num_nextn_predict_layers is {extra}: published checkpoints hold such multi-token-"
        "prediction layers beside the model; no total here counts them"
    )
    return replace(architecture, mtp_layers=architecture.layers[-1:] * extra)


def per_layer(reader: ConfigReader, key: str, layers: int) -> tuple[int, ...]:
    """One size for every layer, or a list with one a layer."""
    if not isinstance(reader.raw(key), list):
        return (reader.size(key),) * layers
    listed = reader.sizes(key) or ()
    if len(listed) != layers:
        reader.refuse(key, f"has {len(listed)} entries for {layers} layers")
    if 0 in listed:
        reader.refuse(key, "has a 0 in it; every entry must be at least 1")
    return listed


def scaled(reader: ConfigReader, key: str, size: int) -> int:
    """A size times the factor under `key`, rounded down; at least 1."""
    product = reader.number(key) * size
    if not 1 <= product <= MAX_SIZE:
        reader.refuse(key, f"is {reader.number(key):g}, which makes a size of {product:g}")
    return int(product)


def gated_mlp(d_ff: int, *, bias: bool = False) -> Mlp:
    """The gated MLP of nearly all families, with biases on all three matrices or on none."""
    return Mlp(d_ff=d_ff, up_bias=bias, down_bias=bias)


def layer_kinds(
    reader: ConfigReader, layers: int, default: Callable[[int], str], key: str = "layer_types"
) -> tuple[str, ...]:
    """Kind of each layer (full, sliding, recurrent, mlp, moe): listed, or else by `default`."""
    listed = reader.texts(key, layers)
    if listed is None:
        return tuple(default(layer) for layer in range(layers))
    for kind in listed:
        if kind not in LAYER_KINDS:
            reader.refuse(key, f"names {shorten(kind)}; known are {', '.join(LAYER_KINDS)}")
    return tuple(LAYER_KINDS[kind] for kind in listed)


def full_every(period: int, *, first: int | None = None) -> Callable[[int], str]:
    """Full attention in one layer of each `period`, the last one unless `first` says which.

    >>> [full_every(3)(layer) for layer in range(4)]
    ['sliding', 'sliding', 'full', 'sliding']
    >>> full_every(0)(5)
    'full'
    """
    if period == 0:
        return lambda _: "full"
    at = period - 1 if first is None else first
    return lambda layer: "full" if layer % period == at else "sliding"


def no_window(_: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Every layer sees all that came before."""
    return (None,) * layers


def same_window(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """`sliding_window` in every layer; null means none."""
    return (reader.optional_size("sliding_window"),) * layers


def windows_by_kind(
    reader: ConfigReader, kinds: tuple[str, ...], key: str = "sliding_window"
) -> tuple[int | None, ...]:
    """The window of the layers that slide, none for the others."""
    window = reader.optional_size(key) if "sliding" in kinds else None
    return tuple(window if kind == "sliding" else None for kind in kinds)


def alternating(period: int | str, *, first: int | None = None) -> WindowRule:
    """Windows by `layer_types`, or else full attention once a `period` (or the key that holds it).

    A key of null or 0 means that no layer slides.
    """

    def rule(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
        every = period if isinstance(period, int) else reader.optional_count(period) or 0
        return windows_by_kind(reader, layer_kinds(reader, layers, full_every(every, first=first)))

    return rule


def all_layers(_: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Every layer has experts."""
    return (True,) * layers


def after_first(key: str) -> LayerRule:
    """Experts in all layers but the first few, whose number stands under `key`."""

    def rule(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
        dense = reader.count(key)
        return tuple(layer >= dense for layer in range(layers))

    return rule


def by_mlp_layer_types(dense_first: int | str) -> LayerRule:
    """Experts where `mlp_layer_types` says sparse; where it is absent, after the first few."""

    def rule(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
        listed = reader.texts("mlp_layer_types", layers)
        if listed is None:
            dense = dense_first if isinstance(dense_first, int) else reader.count(dense_first)
            return tuple(layer >= dense for layer in range(layers))
        for kind in listed:
            if kind not in {"dense", "sparse"}:
                reader.refuse("mlp_layer_types", f"names {shorten(kind)}; known: dense, sparse")
        return tuple(kind == "sparse" for kind in listed)

    return rule


def every_step(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Qwen's rule: each `decoder_sparse_step`-th layer, but none of `mlp_only_layers`."""
    step = reader.size("decoder_sparse_step")
    dense = set(reader.sizes("mlp_only_layers") or ())
    experts = reader.count("num_experts")
    return tuple(
        experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in range(layers)
    )
