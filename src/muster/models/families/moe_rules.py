"""Rules of single mixture-of-experts families: which layers slide, and which have experts."""

from muster.models.families import stack
from muster.models.reader import ConfigReader


def qwen2_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Every other layer slides, up to `max_window_layers`, and only if the flag is set."""
    if not reader.flag("use_sliding_window"):
        return stack.no_window(reader, layers)
    last = reader.count("max_window_layers")
    kinds = stack.layer_kinds(
        reader, layers, lambda layer: "sliding" if layer % 2 == 0 and layer < last else "full"
    )
    return stack.windows_by_kind(reader, kinds)


def qwen3_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """All layers slide, if the flag is set."""
    rule = stack.same_window if reader.flag("use_sliding_window") else stack.no_window
    return rule(reader, layers)


def dots_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """The layers from `max_window_layers` on slide."""
    first = reader.count("max_window_layers")
    kinds = stack.layer_kinds(reader, layers, lambda layer: "sliding" if layer >= first else "full")
    return stack.windows_by_kind(reader, kinds)


def llama4_chunks(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Rotary layers see their own chunk, the others all; every fourth has no rotary embedding."""
    rotary = reader.sizes("no_rope_layers")  # in spite of its name, 1 is a layer with rotary
    if not rotary:
        every = reader.size("no_rope_layer_interval")
        rotary = tuple(int((layer + 1) % every != 0) for layer in range(layers))
    elif len(rotary) != layers:
        reader.refuse("no_rope_layers", f"has {len(rotary)} entries for {layers} layers")
    kinds = stack.layer_kinds(reader, layers, lambda layer: "sliding" if rotary[layer] else "full")
    return stack.windows_by_kind(reader, kinds, "attention_chunk_size")


def llama4_sparse(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Experts in the listed layers, or else in the last of every few."""
    listed = reader.sizes("moe_layers")
    if listed is not None:
        return tuple(layer in listed for layer in range(layers))
    step = reader.size("interleave_moe_layer_step")
    return tuple(layer % step == step - 1 for layer in range(layers))


def ernie_sparse(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Experts in one of every few layers, from a first to a last one; -1 is the last there is."""
    start, every = reader.count("moe_layer_start_index"), reader.size("moe_layer_interval")
    end = layers - 1 if reader.raw("moe_layer_end_index") == -1 else None
    last = reader.count("moe_layer_end_index") if end is None else end
    return tuple(start <= layer <= last and (layer + 1) % every == 0 for layer in range(layers))


def cohere_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """A period of its own for the dense layers at the start."""
    dense = reader.count("first_k_dense_replace")
    first = stack.full_every(reader.count("prefix_dense_sliding_window_pattern"))
    rest = stack.full_every(reader.count("sliding_window_pattern"))
    kinds = stack.layer_kinds(
        reader, layers, lambda layer: first(layer) if layer < dense else rest(layer - dense)
    )
    return stack.windows_by_kind(reader, kinds)


def flint_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Full attention in the first two layers, the last, and one of every four."""
    full = {0, 1, layers - 1}
    kinds = stack.layer_kinds(
        reader, layers, lambda layer: "full" if layer in full or layer % 4 == 1 else "sliding"
    )
    return stack.windows_by_kind(reader, kinds)


def flint_sparse(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Qwen's rule, but two dense layers at the start where none are named."""
    if reader.sizes("mlp_only_layers") is None:
        reader = reader.narrowed({"mlp_only_layers": [0, 1]})
    return stack.every_step(reader, layers)


def mimo_windows(reader: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Full attention in the first layer and one of every six; the window's old name omits self."""
    kinds = stack.layer_kinds(
        reader, layers, lambda layer: "full" if layer == 0 or layer % 6 == 5 else "sliding"
    )
    if reader.raw("sliding_window_size") is not None:
        reader = reader.narrowed({"sliding_window": reader.size("sliding_window_size") + 1})
    return stack.windows_by_kind(reader, kinds)
