"""Everything that a plan takes for given: chip facts, fitted efficiencies, formats, conventions."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.hardware import Chip, Fact, Source, sources
from muster.planner.plan import Plan
from muster.report.chips_table import format_value
from muster.roofline.efficiency import DATA, NAMES, read_efficiency
from muster.roofline.software import default_software
from muster.roofline.step_memory import GPU_FRAGMENTATION, GPU_RUNTIME_BYTES
from muster.units import format_bytes, format_seconds

PLANNED_WITH = ("flops", "memory", "network", "core", "price")
# Every fitted constant, for people.
MEANINGS = {
    "matmul": "share of the bf16 peak that a large matmul reaches",
    "matmul_narrow": "the same of the 8-bit and 4-bit peaks",
    "attention": "share of the bf16 peak that the fused attention kernel reaches",
    "flash_attn": "the same of FlashAttention 1 and 2",
    "elementwise": "share of HBM's bandwidth that elementwise work reaches",
    "near": "share of the bandwidth of ICI or the scale-up network",
    "far": "share of the bandwidth of DCN or the scale-out network",
    "point": "share of either that a send from one chip to another reaches",
    "hide_weights": "most of the time of gathering weights and scattering gradients that hides",
    "hide_tensor": "most of tensor-parallel traffic that hides",
    "hide_gradients": "most of data parallelism's traffic that hides",
    "hide_sequence": "most of context parallelism's traffic that hides",
    "jitter": "share of the step lost for each doubling of the hosts",
    "kernel_seconds": "launch and tail of one kernel",
    "hop_seconds": "latency of one step of a collective",
}


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A fitted efficiency and the table of data/efficiencies.toml that it comes from."""

    name: str
    value: str
    meaning: str
    table: str


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """On what a table was fitted, and how well."""

    table: str
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ChipFact:
    """A physical fact with where it is from."""

    name: str
    value: str
    confidence: str
    weak: bool
    sources: tuple[Source, ...]
    note: str
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """All of them, as the page prints them."""

    facts: tuple[ChipFact, ...]
    software: str
    constants: tuple[Constant, ...]
    fitted: tuple[Fitted, ...]
    formats: tuple[tuple[str, str], ...]
    conventions: tuple[tuple[str, str], ...]


def assumptions(plan: Plan) -> Assumptions:
    """What the plan's numbers rest on."""
    chip = plan.cluster.chip
    software = default_software(chip).name
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return Assumptions(
        facts=tuple(_facts(chip)),
        software=software,
        constants=tuple(_constants(data, chip.id, software)),
        fitted=tuple(_fitted(data, chip.id, software)),
        formats=tuple(_formats(plan)),
        conventions=tuple(_conventions(plan)),
    )


def _facts(chip: Chip) -> Iterator[ChipFact]:
    known = sources()
    for fact in chip.facts:
        if fact.id.partition(".")[0] in PLANNED_WITH:
            yield ChipFact(
                name=fact.id,
                value=format_value(fact.value, fact.unit),
                confidence=fact.confidence,
                weak=fact.weak,
                sources=tuple(known[key] for key in fact.sources if key in known),
                note=fact.note,
                others=tuple(_others(fact)),
            )


def _others(fact: Fact) -> Iterator[str]:
    for other in fact.alternatives:
        note = f" ({other.note})" if other.note else ""
        yield f"{format_value(other.value, fact.unit)} by {', '.join(other.sources)}{note}"


def layered_tables(
    data: Mapping[str, Any], chip_id: str, software: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables that hold for a chip under a software, by name, later ones over earlier ones."""
    own = data["software"][software]
    yield "common", data["common"]
    if "variant_of" in own:
        base = own["variant_of"]
        yield f"software {base}", data["software"][base]
    yield f"software {software}", own
    kin = data["kin"].get(chip_id, chip_id)
    chip = data["chip"].get(kin, {})
    borrowed = "" if kin == chip_id else f", of which {chip_id} is taken to be kin"
    yield f"chip {kin}{borrowed}", chip
    yield f"chip {kin} under {software}{borrowed}", chip.get(software, {})


def _constants(data: Mapping[str, Any], chip_id: str, software: str) -> Iterator[Constant]:
    values = read_efficiency(data, chip_id, software)
    tables = list(layered_tables(data, chip_id, software))
    for name in NAMES:
        value = getattr(values, name)
        yield Constant(
            name=name,
            value=format_seconds(value) if name.endswith("_seconds") else f"{value:.3g}",
            meaning=MEANINGS.get(name, ""),
            table=next((title for title, table in reversed(tables) if name in table), ""),
        )


def _fitted(data: Mapping[str, Any], chip_id: str, software: str) -> Iterator[Fitted]:
    words = {
        "fitted_on": "fitted on",
        "fit": "error of the step time, where fitted",
        "held_back": "error of the step time, held back",
        "narrow_fit": "the same of 8-bit and 4-bit runs, where fitted",
        "narrow_held_back": "the same of 8-bit and 4-bit runs, held back",
        "note": "note",
    }
    for title, table in layered_tables(data, chip_id, software):
        lines = tuple((word, str(table[key])) for key, word in words.items() if key in table)
        if lines:
            yield Fitted(table=title, lines=lines)


def _formats(plan: Plan) -> Iterator[tuple[str, str]]:
    w = plan.workload
    yield "parameters", w.param_dtype
    yield "gradients", w.gradient_dtype or f"{w.param_dtype}, as the parameters"
    yield "optimizer", f"{w.optimizer}, moments in {w.optimizer_dtype}"
    yield "master copy", "float32" if w.master_copy else "none"
    yield "computation", w.compute_dtype
    yield "weights on the network", w.gather_dtype
    yield "gradients on the network", w.reduce_dtype
    yield "attention", f"{w.attention}, a fused kernel that keeps no scores"
    yield "recomputation", f"{plan.choice.remat.value}"
    yield "software", f"{default_software(plan.cluster.chip).name}: what most train with here"


def _conventions(plan: Plan) -> Iterator[tuple[str, str]]:
    chip = plan.cluster.chip
    yield "MFU", "6N: 6 x active parameters, embeddings included, over peak bf16; never recomputed"
    yield "batch", "M is 1024 x 1024 tokens in a batch, T is 1e12 in a corpus"
    yield "bytes", "decimal: 1 GB is 1e9 bytes"
    yield "FLOP/s", "dense peak, without sparsity"
    yield "constants of the chip", chip.constants
    yield "days", "of uninterrupted steps: no restarts, evaluation or checkpoints"
    if chip.price_usd_per_hour is not None:
        yield "price", f"${chip.price_usd_per_hour:.2f} a chip-hour, on-demand list price"
    if chip.kind == "gpu":
        yield (
            "memory reserve",
            f"{format_bytes(GPU_RUNTIME_BYTES)} of driver and libraries, and "
            f"{GPU_FRAGMENTATION:.0%} of fragmentation",
        )
    else:
        yield "usable memory", f"{format_bytes(chip.hbm_bytes)}, what a program can use"
