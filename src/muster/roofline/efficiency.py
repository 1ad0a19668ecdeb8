"""Fitted efficiencies, from data/efficiencies.toml: what share of a physical limit is reached.

The tables that hold for a chip under a software, later ones over earlier ones:

    [software.NAME]         that of which NAME is a variant first
    [chip.ID]               its nearest kin's where ID has no measurements of its own
    [chip.ID.NAME]          the one pair

A chip that takes its kin's matmul and attention shares gets as much less of its peak as its best
measured matmul is less of its own (MI300X 51 %, H100 80 %), and no chip's matmul goes beyond the
best that was measured on it.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from muster.errors import UnknownName
from muster.hardware import chip_by_name

DATA = Path(__file__).parent / "data" / "efficiencies.toml"


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The fitted constants of one chip and software.

    Attributes:
        matmul: share of the matrix unit's bf16 peak that a large matmul reaches.
        matmul_narrow: the same of the peak of 8-bit and 4-bit numbers.
        attention: share of the bf16 peak that the fused attention kernel reaches, on the products
            that it executes.
        flash_attn: the same of FlashAttention 1 and 2.
        elementwise: share of HBM's bandwidth that elementwise work reaches, every operation reading
            and writing its operands; larger where a compiler fuses them.
        near: share of the bandwidth of ICI or of the scale-up network.
        far: share of the bandwidth of DCN or of the scale-out network.
        point: share of either that a send from one chip to another reaches.
        hide_weights: most of the time of gathering weights and scattering gradients that hides.
        hide_tensor: the same of tensor-parallel traffic.
        hide_gradients: the same of data parallelism's traffic at the end of a step.
        hide_sequence: the same of context parallelism's.
        jitter: share of the step lost to waiting for the slowest, for each doubling of the hosts
            (of the slices, on TPUs).
        kernel_seconds: launch and tail of one kernel.
        hop_seconds: latency of one step of a collective.
    """

    matmul: float
    matmul_narrow: float
    attention: float
    flash_attn: float
    elementwise: float
    near: float
    far: float
    point: float
    hide_weights: float
    hide_tensor: float
    hide_gradients: float
    hide_sequence: float
    jitter: float
    kernel_seconds: float
    hop_seconds: float


NAMES = tuple(each.name for each in fields(Efficiency))
MATRIX_UNIT = ("matmul", "matmul_narrow", "attention", "flash_attn")


def efficiency(chip_id: str, software: str) -> Efficiency:
    """The constants of a chip under a software.

    Raises:
        UnknownName: no constants were fitted for that software.

    >>> 0 < efficiency("v5p", "xla").matmul <= 1
    True
    """
    return read_efficiency(_data(), chip_id, software)


def read_efficiency(data: Mapping[str, Any], chip_id: str, software: str) -> Efficiency:
    """The same from given tables."""
    if software not in data["software"]:
        raise UnknownName("software", software, data["software"])
    values = {
        name: float(table[name])
        for table in _tables(data, chip_id, software)
        for name in NAMES
        if name in table
    }
    return Efficiency(**values | _within_measured(data, chip_id, values))


def kin_of(chip_id: str) -> str:
    """The chip whose fitted constants a chip takes: itself where it has its own."""
    return str(_data()["kin"].get(chip_id, chip_id))


@cache
def with_own_rates() -> frozenset[str]:
    """Software whose matmul rate is its own, so that it says nothing of others on its chip."""
    return frozenset(name for name, table in _data()["software"].items() if "own_rates" in table)


def _within_measured(
    data: Mapping[str, Any], chip_id: str, values: Mapping[str, float]
) -> dict[str, float]:
    """Shares of the matrix unit's peak, held to the best measured matmul."""
    own, kin = best_matmul_share(chip_id), best_matmul_share(data["kin"].get(chip_id, chip_id))
    scale = own / kin if own and kin else 1.0
    shares = {name: values[name] * scale for name in MATRIX_UNIT}
    if own:
        shares["matmul"] = min(shares["matmul"], own)
    return shares


@cache
def best_matmul_share(chip_id: str) -> float | None:
    """The best measured matmul as a share of the peak; None where nobody measured one."""
    chip = chip_by_name(chip_id, allow_incomplete=True)
    fact = chip.fact("measured.bf16_matmul_flops")
    if fact is None or not isinstance(fact.value, int | float):
        return None
    return fact.value / chip.bf16_flops


def _tables(data: Mapping[str, Any], chip_id: str, software: str) -> Iterator[Mapping[str, Any]]:
    own = data["software"][software]
    yield data["common"]
    if "variant_of" in own:
        yield data["software"][own["variant_of"]]
    yield own
    chip = data["chip"].get(data["kin"].get(chip_id, chip_id), {})
    yield chip
    yield chip.get(software, {})


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))
