"""Chips from data/: one TOML file a chip, read when first asked for (a few milliseconds)."""

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from muster.errors import BadInput, UnknownName
from muster.hardware.chip import Chip, CompilerTarget, Loopback, Network, Switched, Torus
from muster.hardware.facts import Fact, Source, prefer, read_fact
from muster.hardware.shapes import Shape, SliceRule, parse_shape

DATA = Path(__file__).parent / "data"
DOCUMENTED = "documented"
_FACT_SECTIONS = (
    "release",
    "core",
    "flops",
    "measured",
    "memory",
    "network",
    "host",
    "price",
    "power",
)
_MAKERS = ("tpu", "nvidia", "amdinstinct", "amd", "google")


def chip_by_name(name: str, constants: str = DOCUMENTED, *, allow_incomplete: bool = False) -> Chip:
    """Find a chip by its id or any other name of it; case, spaces and dashes do not count.

    Args:
        name: "v5p", "H100 SXM", "TPU v5 lite" (JAX's device kind of a v5e).
        constants: the profile of constants: "documented" or "book".
        allow_incomplete: whether to return chips that cannot be planned on.

    Raises:
        UnknownName: no such chip or no such profile.
        BadInput: the chip is announced, but too little is known of it to plan on.

    >>> chip_by_name("TPU v5 lite").id, chip_by_name("tpu v5").id
    ('v5e', 'v5p')
    """
    chip_id = find_id(name)
    if chip_id is None:
        raise UnknownName("chip", name.strip(), _names_like(name))
    chip = _chip(chip_id, constants)
    if chip.incomplete and not allow_incomplete:
        raise BadInput(f"{chip.name} cannot be planned on: {chip.incomplete}")
    return chip


def all_chips(constants: str = DOCUMENTED) -> tuple[Chip, ...]:
    """Every chip, also those that are `incomplete`."""
    return tuple(_chip(chip_id, constants) for chip_id in _aliases())


def find_id(name: str) -> str | None:
    """The id of the chip that a name means; None where there is none."""
    key = normalise(name)
    names = _ids_by_name()
    if key in names:
        return names[key]
    for maker in _MAKERS:
        if key.removeprefix(maker) in names:
            return names[key.removeprefix(maker)]
    return None


def normalise(name: str) -> str:
    """Forget case, spaces, dashes and underscores.

    >>> normalise("A100-SXM4 80GB")
    'a100sxm480gb'
    """
    return "".join(name.lower().replace("-", " ").replace("_", " ").split())


@cache
def profiles() -> Mapping[str, tuple[str, ...]]:
    """The profiles of constants: the sources that each prefers, in order."""
    record = _read("profiles.toml")
    return {name: tuple(profile["prefer"]) for name, profile in record.items()}


@cache
def sources() -> Mapping[str, Source]:
    """Every source of figures by its id."""
    record = _read("sources.toml")
    return {
        key: Source(id=key, title=source["title"], where=source["where"])
        for key, source in record.items()
    }


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((DATA / file).read_text(encoding="utf-8"))


@cache
def _aliases() -> Mapping[str, tuple[str, ...]]:
    chips = _read("catalogue.toml")["chips"]
    return {chip_id: tuple(names) for chip_id, names in chips.items()}


@cache
def _ids_by_name() -> Mapping[str, str]:
    return {
        normalise(name): chip_id
        for chip_id, names in _aliases().items()
        for name in (chip_id, *names)
    }


def _names_like(name: str) -> list[str]:
    """Every name where one resembles `name`; the ids where none does."""
    ids = list(_aliases())
    names = [*ids, *(alias.lower() for aliases in _aliases().values() for alias in aliases)]
    return names if difflib.get_close_matches(name.lower(), names) else ids


def _compiler(record: Mapping[str, Any], chip_id: str) -> CompilerTarget:
    options = {
        name: option["values"][chip_id]
        for name, option in _read("compiler_options.toml").items()
        if chip_id in option["values"]
    }
    return CompilerTarget(
        name=record["name"],
        chip_config=record["chip_config"],
        gathers_at_once=record.get("gathers_at_once", False),
        rows_first=record.get("rows_first", True),
        options=options,
    )


@cache
def _chip(chip_id: str, constants: str) -> Chip:
    if constants not in profiles():
        raise UnknownName("constants", constants, profiles())
    record = _read(f"chips/{chip_id}.toml")
    facts = _facts(record, profiles()[constants])
    slices = _slice_rule(record["slices"], facts) if "slices" in record else None
    compiler = record.get("compiler")
    return Chip(
        id=record["id"],
        name=record["name"],
        vendor=record["vendor"],
        kind=record["kind"],
        aliases=_aliases()[chip_id],
        constants=constants,
        peak_flops={
            name.removeprefix("flops."): _number(facts, name)
            for name in facts
            if name.startswith("flops.")
        },
        hbm_bytes=_whole(facts, "memory.usable_bytes", "memory.physical_bytes"),
        hbm_marketing_bytes=_whole(facts, "memory.marketing_bytes", "memory.physical_bytes"),
        hbm_bandwidth=_number(facts, "memory.bandwidth"),
        network=_network(facts, slices),
        chips_per_host=_whole(facts, "host.chips_per_host"),
        devices_per_chip=_whole(facts, "host.devices_per_chip"),
        price_usd_per_hour=_optional(facts, "price.usd_per_chip_hour"),
        slices=slices,
        compiler=_compiler(compiler, chip_id) if compiler else None,
        facts=tuple(facts.values()),
        notes=tuple(record.get("notes", ())),
        incomplete=record.get("incomplete"),
    )


def _facts(record: Mapping[str, Any], preferred: Sequence[str]) -> dict[str, Fact]:
    ids = ((section, name) for section in _FACT_SECTIONS for name in record.get(section, {}))
    return {
        f"{section}.{name}": prefer(
            read_fact(f"{section}.{name}", record[section][name]), preferred
        )
        for section, name in ids
    }


def _network(facts: Mapping[str, Fact], slices: SliceRule | None) -> Network:
    if slices is not None:
        return Torus(
            axes=slices.dims,
            axis_bidi_bandwidth=_number(facts, "network.axis_bidi_bandwidth"),
            link_bandwidth=_number(facts, "network.link_bandwidth"),
            dcn_bandwidth_per_chip=_number(facts, "network.dcn_bandwidth_per_chip"),
            dcn_bandwidth_per_host=_number(facts, "network.dcn_bandwidth_per_host"),
            max_pod_shape=slices.max_pod_shape,
            max_pod_chips=math.prod(slices.max_pod_shape),
            max_schedulable_chips=math.prod(slices.max_schedulable_shape),
            hop_latency_seconds=_optional(facts, "network.hop_latency_seconds"),
        )
    if "network.domain_chips" in facts:
        scale_up = _number(facts, "network.scale_up_bandwidth")
        return Switched(
            domain_chips=_whole(facts, "network.domain_chips"),
            scale_up_bandwidth=scale_up,
            scale_up_link_bandwidth=_optional(facts, "network.scale_up_link_bandwidth") or scale_up,
            scale_out_bandwidth=_number(facts, "network.scale_out_bandwidth"),
            pcie_bandwidth=_optional(facts, "host.pcie_bandwidth"),
        )
    return Loopback(bandwidth=_number(facts, "network.loopback_bandwidth"))


def _slice_rule(record: Mapping[str, Any], facts: Mapping[str, Fact]) -> SliceRule:
    pod = parse_shape(record["max_pod_shape"])
    cores = _whole(facts, "core.tensor_cores_per_chip") if record["type_counts"] == "cores" else 1
    return SliceRule(
        dims=record["dims"],
        listed=_shapes(record["listed"]),
        max_cubes=record.get("max_cubes", 0),
        longest_dim=record.get("longest_dim", 0),
        documented=_shapes(record["documented"]),
        max_pod_shape=pod,
        max_schedulable_shape=parse_shape(
            record.get("max_schedulable_shape", record["max_pod_shape"])
        ),
        max_multislice_chips=record.get("max_multislice_chips", 0),
        wrap=record["wrap"],
        several_shapes=record["several_shapes"],
        type_prefix=record["type_prefix"],
        type_units_per_chip=cores,
        least_type_chips=record["least_type_chips"],
        twisted=record["twisted"],
        rule=record["rule"],
        wrap_rule=record["wrap_rule"],
        sources=tuple(record["sources"]),
    )


def _shapes(names: Sequence[str]) -> tuple[Shape, ...]:
    return tuple(parse_shape(name) for name in names)


def _number(facts: Mapping[str, Fact], fact_id: str) -> float:
    value = _optional(facts, fact_id)
    return math.nan if value is None else value


def _optional(facts: Mapping[str, Fact], fact_id: str) -> float | None:
    if fact_id not in facts:
        return None
    value = facts[fact_id].value
    assert isinstance(value, int | float), fact_id
    return float(value)


def _whole(facts: Mapping[str, Fact], *fact_ids: str) -> int:
    values = (_optional(facts, fact_id) for fact_id in fact_ids)
    return int(next((value for value in values if value is not None), 0))
