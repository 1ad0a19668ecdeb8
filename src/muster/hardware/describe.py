"""Chips as JSON: plain dicts and lists, every source spelt out, unknown figures null."""

import dataclasses
import math
from typing import Any

from muster.hardware.catalogue import sources
from muster.hardware.chip import Chip, Network
from muster.hardware.facts import Alternative, Fact
from muster.hardware.shapes import SliceRule, format_shape
from muster.hardware.slice import accelerator_types


def chip_to_json(chip: Chip) -> dict[str, Any]:
    """Everything that is known of a chip."""
    plain = (
        "id",
        "name",
        "vendor",
        "kind",
        "aliases",
        "constants",
        "incomplete",
        "hbm_bytes",
        "hbm_marketing_bytes",
        "hbm_bandwidth",
        "chips_per_host",
        "devices_per_chip",
        "price_usd_per_hour",
        "notes",
    )
    document = {name: getattr(chip, name) for name in plain}
    document["peak_flops"] = dict(chip.peak_flops)
    document["network"] = _network(chip.network)
    if chip.incomplete:
        document |= dict.fromkeys(("hbm_bytes", "chips_per_host", "devices_per_chip", "network"))
    document["slices"] = _slices(chip.slices) if chip.slices else None
    document["accelerator_types"] = list(accelerator_types(chip))
    document["compiler"] = dataclasses.asdict(chip.compiler) if chip.compiler else None
    document["facts"] = [_fact(fact) for fact in chip.facts]
    return {key: _known(value) for key, value in document.items()}


def _network(network: Network) -> dict[str, Any]:
    fields = {key: _known(value) for key, value in dataclasses.asdict(network).items()}
    if "max_pod_shape" in fields:
        fields["max_pod_shape"] = format_shape(fields["max_pod_shape"])
    return {"type": type(network).__name__.lower(), **fields}


def _slices(rule: SliceRule) -> dict[str, Any]:
    return {
        "rule": rule.rule,
        "wrap_rule": rule.wrap_rule,
        "documented": [format_shape(shape) for shape in rule.documented],
        "max_pod_shape": format_shape(rule.max_pod_shape),
        "max_schedulable_shape": format_shape(rule.max_schedulable_shape),
        "sources": _sources(rule.sources),
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "id": fact.id,
        "value": fact.value,
        "unit": fact.unit,
        "confidence": fact.confidence,
        "sources": _sources(fact.sources),
        "note": fact.note,
        "alternatives": [_alternative(other) for other in fact.alternatives],
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    return {
        "value": other.value,
        "confidence": other.confidence,
        "sources": _sources(other.sources),
        "note": other.note,
    }


def _sources(ids: tuple[str, ...]) -> list[dict[str, str]]:
    return [dataclasses.asdict(sources()[source]) for source in ids]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
