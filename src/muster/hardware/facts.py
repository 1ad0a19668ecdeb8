"""Facts: figures with their unit, confidence, sources and what other sources say instead."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = int | float | str | tuple[float, ...]

WEAK_CONFIDENCE = frozenset({"low", "unverified", "nominal"})

CONFIDENCE = {
    "measured": "measured with the vendor's own software",
    "high": "the vendor's page, or two sources that agree",
    "medium": "one good secondary source",
    "low": "one weak source",
    "derived": "computed from other figures",
    "unverified": "nobody looked it up",
    "nominal": "chosen by muster, not a fact",
    "as printed": "what the preferred source prints",
}

_UNITS = {
    "release.year": "",
    "core.clock_hz": "Hz",
    "core.mxu_dim": "",
    "measured.bf16_matmul_flops": "FLOP/s",
    "memory.driver_mib": "MiB",
    "memory.nominal_mib": "MiB",
    "network.hop_latency_seconds": "s",
    "network.torus_axes": "axes",
    "price.usd_per_chip_hour": "USD/h",
    "price.spot_usd_per_chip_hour": "USD/h",
}
_UNITS_BY_WORD = (
    ("flops.", "FLOP/s"),
    ("bandwidth", "B/s"),
    ("bidi_per_chip", "B/s"),
    ("bytes", "B"),
    ("watts", "W"),
    ("chips", "chips"),
    ("cubes", "cubes"),
    ("links", "links"),
    ("cores", "cores"),
    ("mxus", "MXUs"),
    ("devices", "devices"),
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where figures come from: a document and the place in it."""

    id: str
    title: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """What other sources say about the same figure."""

    value: Value
    sources: tuple[str, ...]
    note: str = ""
    confidence: str = "as printed"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One figure of one chip. `sources` are ids, resolved by `muster.hardware.sources()`."""

    id: str
    value: Value
    unit: str
    confidence: str
    sources: tuple[str, ...]
    note: str = ""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def weak(self) -> bool:
        """Whether the figure is too uncertain to plan on without a warning."""
        return self.confidence in WEAK_CONFIDENCE

    @property
    def disputed(self) -> bool:
        """Whether some source gives another value."""
        return any(other.value != self.value for other in self.alternatives)


def unit_of(fact_id: str) -> str:
    """Name the unit in which a fact is kept.

    >>> unit_of("memory.usable_bytes"), unit_of("network.link_bandwidth"), unit_of("flops.bf16")
    ('B', 'B/s', 'FLOP/s')
    """
    if fact_id in _UNITS:
        return _UNITS[fact_id]
    return next((unit for word, unit in _UNITS_BY_WORD if word in fact_id), "")


def read_fact(fact_id: str, record: Mapping[str, object]) -> Fact:
    """Build a fact from its TOML table."""
    alternatives = record.get("alternatives", [])
    assert isinstance(alternatives, list)
    return Fact(
        id=fact_id,
        value=_value(record["value"]),
        unit=unit_of(fact_id),
        confidence=str(record["confidence"]),
        sources=_strings(record["sources"]),
        note=str(record.get("note", "")),
        alternatives=tuple(
            Alternative(
                value=_value(other["value"]),
                sources=(str(other["source"]),),
                note=str(other.get("note", "")),
            )
            for other in alternatives
        ),
    )


def prefer(fact: Fact, sources: Sequence[str]) -> Fact:
    """Take the figure of the first of `sources` that has one; the documented figure otherwise.

    The figure that steps back becomes the first alternative, so nothing is lost.
    """
    for source in sources:
        if source in fact.sources:
            return fact
        for other in fact.alternatives:
            if source in other.sources:
                return _swap(fact, other)
    return fact


def _swap(fact: Fact, other: Alternative) -> Fact:
    documented = Alternative(
        value=fact.value, sources=fact.sources, note=fact.note, confidence=fact.confidence
    )
    rest = tuple(each for each in fact.alternatives if each is not other)
    return dataclasses.replace(
        fact,
        value=other.value,
        confidence=other.confidence,
        sources=other.sources,
        note=other.note,
        alternatives=(documented, *rest),
    )


def _value(raw: object) -> Value:
    if isinstance(raw, list):
        return tuple(float(each) for each in raw)
    assert isinstance(raw, int | float | str)
    return raw


def _strings(raw: object) -> tuple[str, ...]:
    assert isinstance(raw, list)
    return tuple(str(each) for each in raw)
