"""`muster models` on a terminal: the big table, and one model in full."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    LightningAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Norm,
    Recurrence,
    ShortConv,
)
from muster.report.params_table import params_page
from muster.report.terminal import QUIET, console
from muster.roofline.model_rows import ModelRow
from muster.units import format_count, format_si

NOTHING = "-"
_MOST_NAME = 26
_HEADINGS = (
    *("model", "L", "D", "F", "N", "K", "H", "V", "k/E"),
    *("params", "active", "MLP\n%", "att\n%", "con-\ntext", "tied"),
)
_DROPPED_FIRST = ("tied", "att\n%", "MLP\n%", "H", "con-\ntext", "V", "K", "N", "F")
_LEGEND = (
    "L layers, D d_model, F d_ff (of one expert), N heads, K KV heads, H head_dim, V vocabulary, "
    "k/E experts that a token takes of all, context in units of 1024; shares are of the trainable "
    "parameters. `muster models NAME` shows one in full."
)


def print_models(rows: Sequence[ModelRow]) -> None:
    """Print the table of models."""
    screen = console()
    if not rows:
        screen.print("no model passes these filters")
        return
    screen.print(_fitting_table(rows, screen))
    screen.print()
    screen.print(Text(f"{len(rows)} model{'s' if len(rows) > 1 else ''}. {_LEGEND}", style=QUIET))


def print_model(architecture: Architecture) -> None:
    """Print everything that is known of one model."""
    console().print(model_page(architecture))


def _fitting_table(rows: Sequence[ModelRow], screen: Console) -> Table:
    """The table with as many columns as the terminal is wide enough for."""
    left_out: list[str] = []
    table = models_table(rows)
    for heading in _DROPPED_FIRST:
        if Measurement.get(screen, screen.options.update(width=500), table).maximum <= screen.width:
            break
        left_out.append(heading)
        table = models_table(rows, left_out)
    return table


def models_table(rows: Sequence[ModelRow], left_out: Sequence[str] = ()) -> Table:
    """One row a model, at most 100 columns wide; without the columns that are `left_out`."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    shown = [index for index, heading in enumerate(_HEADINGS) if heading not in left_out]
    for heading in (_HEADINGS[index] for index in shown):
        first = heading == "model"
        table.add_column(
            heading,
            justify="left" if first else "right",
            no_wrap=not first,
            overflow="fold",
        )
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells[index] for index in shown))
    return table


def _cells(row: ModelRow) -> list[str]:
    sizes = (row.layers, row.d_model, row.d_ff, row.heads, row.kv_heads, row.head_dim, row.vocab)
    experts = f"{row.experts_per_token}/{row.experts}" if row.experts else NOTHING
    return [
        _broken(row.name),
        *(NOTHING if size is None else str(size) for size in sizes),
        experts,
        short_count(row.params),
        short_count(row.active) if row.experts else NOTHING,
        f"{row.mlp:.0%}".rstrip("%"),
        f"{row.attention:.0%}".rstrip("%"),
        format_context(row.context),
        "yes" if row.tied else "no",
    ]


def _broken(name: str) -> str:
    """A long name on two lines, broken after a dash."""
    if len(name) <= _MOST_NAME:
        return name
    cut = name.rfind("-", 0, _MOST_NAME) + 1 or _MOST_NAME
    return f"{name[:cut]}\n  {name[cut:]}"


def short_count(count: int) -> str:
    """A count in six characters or fewer.

    >>> short_count(70553706496), short_count(1026408209408)
    ('70.6B', '1.03T')
    """
    return format_si(count).replace(" ", "")


def format_context(tokens: int | None) -> str:
    """A context length as people say it.

    >>> format_context(131072), format_context(10485760), format_context(1000), format_context(None)
    ('128k', '10M', '1000', '-')
    """
    if tokens is None:
        return NOTHING
    for scale, suffix in ((1024**2, "M"), (1024, "k")):
        if tokens >= scale and tokens % scale == 0:
            return f"{tokens // scale}{suffix}"
    return str(tokens)


def model_page(architecture: Architecture) -> RenderableType:
    """One model in full: how its layers are built, then its parameters."""
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    facts.add_column(no_wrap=True)
    facts.add_column(ratio=1)
    for label, value in _facts(architecture):
        facts.add_row(label, value)
    return params_page(architecture, facts)


def _facts(a: Architecture) -> list[tuple[str, str]]:
    context = (
        "not stated" if a.context_length is None else f"{format_count(a.context_length)} tokens"
    )
    tied = "tied" if a.tied_embeddings else "apart"
    facts = [
        *((f"{copies} x layer", describe_layer(layer)) for layer, copies in a.layer_groups),
        ("embedding", f"{format_count(a.vocab_size)} x {a.d_model}, head {tied}{_embedding(a)}"),
        ("final norm", describe_norm(a.final_norm)),
        ("context", context),
        ("positions", _positions(a)),
    ]
    if a.towers:
        facts.append(("towers", ", ".join(tower.name for tower in a.towers)))
    return facts


def _embedding(a: Architecture) -> str:
    narrow = f", {a.embedding_dim} wide" if a.embedding_dim else ""
    bias = ", head with bias" if a.head_bias else ""
    return f"{narrow}{bias}{', normed' if a.embedding_norm else ''}"


def _positions(a: Architecture) -> str:
    if a.position_embeddings:
        return f"a learned table of {format_count(a.position_embeddings)} rows"
    if a.rope is None:
        return "no learned ones (computed, or a bias of the scores)"
    parts = [f"rotary, theta {a.rope.theta:,.0f}"]
    if a.rope.sliding_theta:
        parts.append(f"{a.rope.sliding_theta:,.0f} in sliding layers")
    if a.rope.rotary_dim:
        parts.append(f"{a.rope.rotary_dim // 2} pairs a head")
    if a.rope.scaling:
        factor = f" by {a.rope.factor:g}" if a.rope.factor else ""
        parts.append(f"{a.rope.scaling} scaling{factor}")
    return ", ".join(parts)


def describe_layer(layer: Layer) -> str:
    """One layer in a phrase."""
    parts = [describe_mixer(layer.mixer), _describe_mlp(layer.mlp)]
    norms = "no norms"
    if layer.norms:
        plural = "s" if len(layer.norms) > 1 else ""
        norms = f"{len(layer.norms)} {describe_norm(layer.norms[0])}{plural}"
    return "; ".join([*(part for part in parts if part), norms])


def describe_mixer(mixer: Mixer | None) -> str:
    """A token mixer in a phrase."""
    match mixer:
        case None:
            return "no attention"
        case Attention():
            return _describe_attention(mixer)
        case LatentAttention():
            return _describe_latent(mixer)
        case _:
            return _describe_recurrence(mixer)


def _describe_latent(a: LatentAttention) -> str:
    queries = f", queries {a.q_lora_rank}" if a.q_lora_rank else ""
    sparse = f", the {a.indexer.top_k:,} keys an indexer picks" if a.indexer else ""
    return f"latent attention of {a.num_heads} heads (rank {a.kv_lora_rank}{queries}){sparse}"


def _describe_recurrence(mixer: Recurrence) -> str:
    match mixer:
        case Mamba1():
            return f"Mamba mixer of {mixer.inner:,} channels, state {mixer.state_size}"
        case Mamba2():
            heads = f"{mixer.num_heads} heads of {mixer.head_dim}"
            return f"Mamba-2 mixer, {heads}, state {mixer.state_size}"
        case GatedDeltaNet():
            heads = f"{mixer.num_value_heads} heads of {mixer.value_head_dim}"
            return f"gated delta rule, {heads}"
        case LightningAttention():
            return f"lightning attention, {mixer.num_heads} heads of {mixer.head_dim}"
        case ShortConv():
            return f"gated convolution over {mixer.conv_width} tokens"


def _describe_attention(a: Attention) -> str:
    kind = "multi-head" if a.num_kv_heads == a.num_heads else "grouped-query"
    kind = "multi-query" if a.num_kv_heads == 1 < a.num_heads else kind
    biases = {"q": a.query_bias, "k": a.key_bias, "v": a.value_bias, "o": a.output_bias}
    present = "".join(letter for letter, on in biases.items() if on)
    window = ("chunks" if a.chunked else "window") + f" {a.window:,}" if a.window else ""
    details = [
        f"{a.num_heads} heads on {a.num_kv_heads} of {a.head_dim}",
        window,
        f"bias {present}" if present else "",
        "q/k norm" if a.qk_norm else "",
        "gated" if a.output_gate else "",
        "sinks" if a.sinks else "",
        "" if a.own_kv else "keys and values of an earlier layer",
        "" if a.rotary else "not rotary",
    ]
    return f"{kind} attention, " + ", ".join(detail for detail in details if detail)


def _describe_mlp(mlp: Mlp | Experts | None) -> str:
    match mlp:
        case None:
            return "no MLP"
        case Mlp():
            kind = "gated" if mlp.gated else "plain"
            bias = ", bias" if mlp.up_bias else ""
            return f"{kind} MLP {format_count(mlp.d_ff)}{bias}"
        case Experts():
            shared = f" and {format_count(mlp.shared.d_ff)} shared" if mlp.shared else ""
            return (
                f"{mlp.experts_per_token} of {mlp.num_experts} experts of "
                f"{format_count(mlp.d_ff)}{shared}"
            )


def describe_norm(norm: Norm | None) -> str:
    """A norm in a phrase."""
    if norm is None:
        return "none"
    name = {"rms": "RMS norm", "layer": "layer norm"}[norm.kind]
    return name if norm.scale else f"bare {name}"
