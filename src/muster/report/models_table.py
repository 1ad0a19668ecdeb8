"""`muster models` on a terminal: the big table, and one model in full."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from muster.models.architecture import (
    Architecture,
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mixer,
    Mlp,
    Norm,
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
    screen.print(models_table(rows))
    screen.print()
    screen.print(Text(f"{len(rows)} model{'s' if len(rows) > 1 else ''}. {_LEGEND}", style=QUIET))


def print_model(architecture: Architecture) -> None:
    """Print everything that is known of one model."""
    console().print(model_page(architecture))


def models_table(rows: Sequence[ModelRow]) -> Table:
    """One row a model, at most 100 columns wide."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        first = heading == "model"
        table.add_column(
            heading,
            justify="left" if first else "right",
            no_wrap=not first,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*_cells(row))
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
    norms = f"{len(layer.norms)} {describe_norm(layer.norms[0])}s" if layer.norms else "no norms"
    return "; ".join([*(part for part in parts if part), norms])


def describe_mixer(mixer: Mixer | None) -> str:
    """A token mixer in a phrase."""
    match mixer:
        case None:
            return "no attention"
        case Attention():
            return _describe_attention(mixer)
        case LatentAttention():
            rank = f"rank {mixer.kv_lora_rank}" + (
                f", queries {mixer.q_lora_rank}" if mixer.q_lora_rank else ""
            )
            return f"latent attention of {mixer.num_heads} heads ({rank})"
        case _:
            return type(mixer).__name__


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
