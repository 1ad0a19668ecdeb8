"""`muster params` on a terminal: every component, the three totals, and what is published."""

import json
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.models.architecture import Architecture
from muster.models.registry import published_counts
from muster.report.terminal import QUIET, ROOM_FOR_BARS, WARN, bar, console, title, width
from muster.roofline.mfu import active_params
from muster.roofline.params import (
    ComponentCount,
    ParamCounts,
    components,
    legend,
    param_counts,
    subtotals,
)
from muster.units import format_count, format_si

GROUP_TITLES = {
    "embedding": "embedding",
    "attention": "attention",
    "recurrence": "recurrence",
    "mlp": "MLP",
    "experts": "experts",
    "norm": "norms",
    "head": "head",
    "extra": "extra",
    "tower": "towers",
}
_BAR_CELLS = 12


def print_params(architecture: Architecture) -> None:
    """Print a model's parameters in full."""
    console().print(params_page(architecture))


def params_page(architecture: Architecture, facts: RenderableType | None = None) -> RenderableType:
    """The page: legend, components by group, totals, defaults that were filled in, remarks.

    `facts` about the model stand after its legend.
    """
    rows = components(architecture)
    parts: list[RenderableType] = [
        title(architecture.name, f"{architecture.family}, {architecture.num_layers} layers"),
        Text("  ".join(f"{letter}={size}" for letter, size in legend(architecture).items())),
        Text(),
        *([] if facts is None else [facts, Text()]),
        _component_table(rows),
        Text(),
        totals_table(architecture, param_counts(architecture)),
        *_filled_in(architecture),
        *_remarks(architecture),
    ]
    return Group(*parts)


def _component_table(rows: Iterable[ComponentCount]) -> Table:
    rows = list(rows)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("component", overflow="fold", min_width=14)
    table.add_column("formula", overflow="fold", min_width=8)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    bars = width() >= ROOM_FOR_BARS
    if bars:
        table.add_column("", width=_BAR_CELLS, no_wrap=True)
    total = sum(row.count for row in rows)
    for group, count in subtotals(rows).items():
        share = count / total
        table.add_row(
            Text(GROUP_TITLES.get(group, group), style="bold"),
            "",
            Text(format_count(count), style="bold"),
            Text(format_share(share), style="bold"),
            *([bar(share, _BAR_CELLS)] if bars else []),
        )
        for row in rows:
            if row.group == group:
                table.add_row(
                    f"  {row.name}", row.formula, format_count(row.count), format_share(row.share)
                )
    return table


def totals_table(architecture: Architecture, counts: ParamCounts) -> Table:
    """The three totals, what each means, and what is published of the checkpoint."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style=QUIET, ratio=1, overflow="fold")
    rows = [
        ("trainable", counts.trainable, _trainable_meaning(architecture)),
        ("stored", counts.stored, _stored_meaning(architecture, counts)),
        ("active", counts.active, _active_meaning(architecture)),
    ]
    if architecture.towers:
        text = active_params(architecture)
        rows.append(("text", text, "of these what a text token meets: no towers"))
    for name, count, meaning in rows:
        table.add_row(
            Text(name, style="bold"), format_count(count), format_si(count, digits=4), meaning
        )
    for figure in published_counts(architecture):
        same = "as stored" if figure.params_total == counts.stored else figure.note or "differs"
        source = figure.source.removeprefix("published: ")
        table.add_row(
            "published",
            format_count(figure.params_total),
            format_si(figure.params_total, digits=4),
            f"{same} ({source})",
        )
    return table


def _trainable_meaning(architecture: Architecture) -> str:
    towers = ", the other towers included" if architecture.towers else ""
    tied = "a tied head once" if architecture.tied_embeddings else "embedding and head apart"
    return f"distinct trained parameters, {tied}{towers}"


def _stored_meaning(architecture: Architecture, counts: ParamCounts) -> str:
    if counts.stored == counts.trainable:
        return "what a checkpoint holds: the same"
    if architecture.tied_embeddings and architecture.stores_tied_head:
        return "what its checkpoint holds: the tied head a second time"
    buffers = format_count(counts.stored - counts.trainable)
    return f"what a checkpoint holds: {buffers} untrained numbers (buffers) besides"


def _active_meaning(architecture: Architecture) -> str:
    experts = architecture.experts
    if experts is None:
        return "all of them, no experts to choose"
    return f"what one token meets: {experts.experts_per_token} of {experts.num_experts} experts"


def _filled_in(architecture: Architecture) -> Iterable[RenderableType]:
    if not architecture.filled_in:
        return
    yield Text()
    yield title("Filled in", "keys that the config lacks, with the model class's own defaults")
    pairs = [f"{key} = {json.dumps(value)}" for key, value in architecture.filled_in]
    yield Padding(Text(", ".join(pairs), style=QUIET), (0, 0, 0, 2))


def _remarks(architecture: Architecture) -> Iterable[RenderableType]:
    if not architecture.notes:
        return
    yield Text()
    yield title("Notes")
    for note in architecture.notes:
        yield Padding(Text(note, style=WARN), (0, 0, 0, 2))


def format_share(share: float) -> str:
    """A share in percent, with the digits that matter.

    >>> format_share(0.7943), format_share(0.00019), format_share(0.000019), format_share(1.0)
    ('79.4%', '0.02%', '<0.01%', '100.0%')
    """
    if share < 0.0001:
        return "<0.01%"
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}"
