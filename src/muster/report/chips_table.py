"""`muster chips` on a terminal: the table of chips, and one chip with all that is known of it."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.hardware import (
    Alternative,
    Chip,
    Fact,
    Network,
    Switched,
    Torus,
    accelerator_types,
    chip_by_name,
    profiles,
    sources,
)
from muster.hardware.facts import CONFIDENCE, Value
from muster.hardware.shapes import format_shape
from muster.report.columns import Column, shown
from muster.report.terminal import QUIET, WARN, console, title
from muster.units import GIB, format_bytes, format_si

UNKNOWN = "-"
_TERA, _GIGA = 1e12, 1e9
_MOST_TYPES_SHOWN = 10
_HEADINGS = (
    "chip",
    "bf16\nTFLOP/s",
    "HBM GB",
    "HBM GB\non sheet",
    "HBM\nGB/s",
    "network",
    "GB/s",
    "DCN, NIC\nGB/s",
    "pod\nchips",
    "$ an\nhour",
)
_LEFT = {"chip", "network"}
# Which columns go first where the terminal is narrow.
_DROPPED = ("HBM GB\non sheet", "pod\nchips", "DCN, NIC\nGB/s", "network", "GB/s")


def print_chips(chips: Sequence[Chip]) -> None:
    """Print the table of chips and how to read it."""
    screen = console()
    screen.print(chips_table(chips))
    screen.print()
    screen.print(Text(_legend(chips[0].constants), style=QUIET))


def print_chip(chip: Chip) -> None:
    """Print everything that is known of one chip."""
    console().print(chip_page(chip))


def chips_table(chips: Sequence[Chip]) -> Table:
    """One row a chip; a second line where another profile of constants has another figure."""
    rows: list[dict[str, str | Text]] = []
    for chip in chips:
        others = {
            name: _cells(chip_by_name(chip.id, name, allow_incomplete=True))
            for name in profiles()
            if name != chip.constants
        }
        rows += [dict(zip(_HEADINGS, cells, strict=True)) for cells in _rows(_cells(chip), others)]
    columns = [
        Column(name, left=name in _LEFT, rank=_DROPPED.index(name) + 1 if name in _DROPPED else 0)
        for name in _HEADINGS
    ]
    return shown(columns, rows)


def _rows(cells: Sequence[str], others: dict[str, list[str]]) -> list[list[Text]]:
    """The chip's own row, and one for every other profile with the figures that differ."""
    rows = [[Text(cell) for cell in cells]]
    for name, other in others.items():
        different = [new if new != old else "" for old, new in zip(cells, other, strict=True)]
        if any(different):
            different[0] = f"  {name}"
            rows.append([Text(cell, style=QUIET) for cell in different])
    return rows


def _cells(chip: Chip) -> list[str]:
    incomplete = chip.incomplete is not None
    fast, out, pod = _network_figures(chip.network)
    return [
        chip.id,
        _scaled(chip.bf16_flops, _TERA),
        UNKNOWN if incomplete else _scaled(chip.hbm_bytes, _GIGA),
        _scaled(chip.hbm_marketing_bytes, _GIGA),
        _scaled(chip.hbm_bandwidth, _GIGA),
        "incomplete" if incomplete else _network_name(chip),
        fast,
        out,
        pod,
        UNKNOWN if chip.price_usd_per_hour is None else f"{chip.price_usd_per_hour:.2f}",
    ]


def _network_name(chip: Chip) -> str:
    match chip.network:
        case Torus(axes=axes):
            return f"{axes}-D torus"
        case Switched(domain_chips=chips):
            return f"{'NVLink' if chip.vendor == 'NVIDIA' else 'Fabric'} x{chips}"
        case _:
            return "loopback"


def _network_figures(network: Network) -> tuple[str, str, str]:
    """GB/s inside the fast network, GB/s out of it, chips of a pod."""
    match network:
        case Torus():
            fast, out = network.axis_bidi_bandwidth, network.dcn_bandwidth_per_chip
            return _scaled(fast, _GIGA), _scaled(out, _GIGA), str(network.max_pod_chips)
        case Switched():
            fast, out = network.scale_up_bandwidth, network.scale_out_bandwidth
            return _scaled(fast, _GIGA), _scaled(out, _GIGA), UNKNOWN
        case _:
            return _scaled(network.bandwidth, _GIGA), UNKNOWN, UNKNOWN


def _scaled(value: float, unit: float) -> str:
    """A figure in `unit` without needless digits.

    >>> _scaled(4.59e14, 1e12), _scaled(6.25e9, 1e9), _scaled(102785613824, 1e9)
    ('459', '6.25', '102.8')
    """
    if math.isnan(value):
        return UNKNOWN
    digits = 1 if value >= 16 * unit else 3
    return f"{value / unit:.{digits}f}".rstrip("0").rstrip(".")


def _legend(constants: str) -> str:
    return (
        f"Constants: {constants}. FLOP/s are dense, GB are 1e9 bytes, HBM GB is what a program\n"
        "can use. GB/s of a torus: what a chip sends along one axis, both directions together;\n"
        "of NVLink x8 or Fabric x8: what a GPU sends inside its domain of 8, one direction.\n"
        "DCN, NIC GB/s: what a chip sends out of it. $: on-demand list price of a chip-hour.\n"
        "`muster chips NAME` shows every figure with confidence, sources and what others say."
    )


def chip_page(chip: Chip) -> Group:
    """Everything about one chip: names, slices, every fact with its alternatives."""
    parts: list[RenderableType] = [title(chip.name, f"{chip.id}, constants: {chip.constants}")]
    if chip.incomplete:
        parts.append(Text(f"cannot be planned on: {chip.incomplete}", style=WARN))
    parts += [_about(chip), _facts(chip.facts), Text()]
    parts += [Text(f"* {note}", style=QUIET) for note in chip.notes]
    return Group(*parts, Text(), _sources(chip))


def _about(chip: Chip) -> Table:
    rows = [("also called", ", ".join(chip.aliases) or UNKNOWN)]
    if rule := chip.slices:
        pod = f"{math.prod(rule.max_pod_shape)} chips ({format_shape(rule.max_pod_shape)})"
        largest = rule.max_schedulable_shape
        rows += [
            ("pod", pod),
            ("largest slice", f"{math.prod(largest)} chips ({format_shape(largest)})"),
            ("legal slices", rule.rule),
            ("wraparound", rule.wrap_rule),
            ("accelerator types", _types(chip)),
        ]
    if chip.compiler:
        rows.append(
            ("TPU compiler", f"{chip.compiler.name}, chip config {chip.compiler.chip_config}")
        )
    table = _two_columns()
    for label, value in rows:
        table.add_row(label, value)
    return table


def _types(chip: Chip) -> str:
    """The first accelerator types, the last, and what their number counts."""
    types = accelerator_types(chip)
    assert chip.slices is not None
    counts = "TensorCores" if chip.slices.type_units_per_chip > 1 else "chips"
    shown = types
    if len(types) > _MOST_TYPES_SHOWN:
        shown = (*types[: _MOST_TYPES_SHOWN - 1], "...", types[-1])
    return f"{', '.join(shown)} ({len(types)} in all; the number counts {counts})"


def _two_columns() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(ratio=1)
    return table


def _facts(facts: Sequence[Fact]) -> Group:
    """Every fact under its section: one line of figures, then notes and what others say."""
    lines: list[RenderableType] = []
    section = ""
    for fact in facts:
        head, _, name = fact.id.partition(".")
        if head != section:
            lines += [Text(), title(head)]
            section = head
        lines += [_fact(name, fact), *_remarks(fact)]
    return Group(*lines)


def _fact(name: str, fact: Fact) -> Text:
    text = Text(f"  {name:28}{format_value(fact.value, fact.unit):22}")
    text.append(f"{fact.confidence:12}", style=WARN if fact.weak else "")
    return text.append(", ".join(fact.sources))


def _remarks(fact: Fact) -> list[Padding]:
    lines = [Text(fact.note, style=QUIET)] if fact.note else []
    lines += [_alternative(other, fact.unit) for other in fact.alternatives]
    return [Padding(line, (0, 0, 0, 6)) for line in lines]


def _alternative(other: Alternative, unit: str) -> Text:
    said = f"{format_value(other.value, unit)} by {', '.join(other.sources)}"
    text = Text("sources differ: ", style=WARN).append(said, style="default")
    return text.append(f" ({other.note})" if other.note else "", style=QUIET)


def format_value(value: Value, unit: str) -> str:
    """Print a figure in its unit; bytes also in GiB where they are many.

    >>> format_value(4.59e14, "FLOP/s"), format_value(2017, ""), format_value(102785613824, "B")
    ('459 TFLOP/s', '2017', '102.8 GB = 95.73 GiB')
    >>> format_value(1536 * 1024**3, "B")
    '1.649 TB = 1536 GiB'
    """
    if isinstance(value, tuple):
        return f"{' / '.join(f'{each:g}' for each in value)} {unit}"
    if isinstance(value, str) or not unit:
        return str(value)
    if unit == "B":
        many = value / GIB
        binary = f" = {many:.{2 if many < 1000 else 0}f} GiB" if many >= 1 else ""
        return format_bytes(value, digits=4) + binary
    if unit in {"FLOP/s", "B/s", "Hz"}:
        return format_si(
            float(f"{value:.4g}"), unit, digits=4 if value != float(f"{value:.3g}") else 3
        )
    return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"


def _sources(chip: Chip) -> Group:
    """The titles behind the ids that the page shows, and what the words of confidence mean."""
    said = [source for fact in chip.facts for source in fact.sources]
    said += [source for f in chip.facts for other in f.alternatives for source in other.sources]
    said += chip.slices.sources if chip.slices else ()
    titles = _two_columns()
    for key, source in sources().items():
        if key in said:
            titles.add_row(key, Text(source.title).append(f"; {source.where}", style=QUIET))
    words = _two_columns()
    for word, meaning in CONFIDENCE.items():
        if any(fact.confidence == word for fact in chip.facts):
            words.add_row(word, meaning)
    return Group(title("sources"), titles, Text(), title("confidence"), words)
