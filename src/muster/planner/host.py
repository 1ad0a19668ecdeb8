"""The memory of a TPU's host, where offloaded activations wait."""

from dataclasses import dataclass

from muster.hardware import Chip
from muster.units import GIB

# Half of the smallest host whose memory is known (v5e: 512 GiB).
ASSUMED_BYTES = 256 * GIB


@dataclass(frozen=True, kw_only=True)
class HostShare:
    """One chip's share of its host's memory; `known` where it is not assumed."""

    bytes: float
    known: bool


def host_share(chip: Chip) -> HostShare:
    """What activations may take of the host's memory for one chip."""
    fact = chip.fact("host.dram_bytes")
    value = fact.value if fact else None
    known = isinstance(value, int | float)
    whole = float(value) if isinstance(value, int | float) else float(ASSUMED_BYTES)
    return HostShare(bytes=whole / chip.chips_per_host, known=known)
