"""A chip (TPU chip, GPU or CPU device): what it computes, what it holds, what it is wired to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from muster.hardware.facts import Fact
from muster.hardware.shapes import Shape, SliceRule


@dataclass(frozen=True, kw_only=True)
class Torus:
    """ICI: every chip has a link each way along every axis of a 2-D or 3-D torus.

    Attributes:
        axes: 2 or 3.
        axis_bidi_bandwidth: bytes/s that one chip sends along one axis in both directions together,
            on an axis that wraps around; the book's W_ici.
        link_bandwidth: bytes/s of one link in one direction; half of axis_bidi_bandwidth.
        dcn_bandwidth_per_chip: bytes/s that one chip sends over the data-center network.
        dcn_bandwidth_per_host: the same of one host.
        max_pod_shape: the largest torus that is wired.
        max_pod_chips: its chips.
        max_schedulable_chips: chips of the largest slice that can be asked for.
        hop_latency_seconds: time of one hop between neighbours, where known.
    """

    axes: int
    axis_bidi_bandwidth: float
    link_bandwidth: float
    dcn_bandwidth_per_chip: float
    dcn_bandwidth_per_host: float
    max_pod_shape: Shape
    max_pod_chips: int
    max_schedulable_chips: int
    hop_latency_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Switched:
    """GPUs: a fast scale-up domain (NVLink, Infinity Fabric), and a scale-out network between them.

    Attributes:
        domain_chips: GPUs in one scale-up domain.
        scale_up_bandwidth: bytes/s that one GPU sends inside the domain, one direction.
        scale_up_link_bandwidth: bytes/s to a single peer; less where no switch joins the domain.
        scale_out_bandwidth: bytes/s that one GPU sends out of its node, one direction.
        pcie_bandwidth: bytes/s between the GPU and its host, one direction, where known.
    """

    domain_chips: int
    scale_up_bandwidth: float
    scale_up_link_bandwidth: float
    scale_out_bandwidth: float
    pcie_bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """Devices of one machine that share its memory; `bandwidth` is bytes/s of one device."""

    bandwidth: float


Network = Torus | Switched | Loopback


@dataclass(frozen=True, kw_only=True)
class CompilerTarget:
    """How the TPU compiler calls the chip, and what it is asked for.

    Attributes:
        name: a topology is `{name}:{shape}`.
        chip_config: its chip configuration.
        options: compiler options that a training step is compiled with unless told otherwise.
        gathers_at_once: whether a gather over several axes of the torus runs beside matmuls, as
            one over a single axis does.
        rows_first: whether the compiler is told to lay a weight's gradient out rows first, as it is
            scattered. On v6e it else copied what it had laid out otherwise (6% of LLaMA-3 70B's
            step); on v7x, where it needs no telling, the scatters then hid less (9%).
    """

    name: str
    chip_config: str
    gathers_at_once: bool = False
    rows_first: bool = True
    options: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator chip. FLOP/s are dense; bytes are per chip; bandwidths are bytes/s.

    Attributes:
        id: short name: "v5p", "h100".
        name: full name.
        vendor: who makes it.
        kind: "tpu", "gpu" or "cpu".
        aliases: other names that are understood.
        constants: the profile of constants that the figures follow: "documented" or "book".
        peak_flops: dense peak FLOP/s by dtype: "bf16", "fp8", "int8", ...
        hbm_bytes: bytes that a program can use: what the TPU compiler was measured to allow; what
            a GPU's driver offers to programs.
        hbm_marketing_bytes: bytes on the data sheet.
        hbm_bandwidth: bytes/s.
        network: what it is wired to.
        chips_per_host: chips of one host.
        devices_per_chip: JAX devices of one chip (2 where a device is a TensorCore).
        price_usd_per_hour: on-demand list price of one chip-hour; None where no price was found.
        slices: legal slices, for TPUs.
        compiler: how the TPU compiler calls it.
        facts: every figure with its confidence, sources and alternatives.
        notes: remarks that belong to no single figure.
        incomplete: why the chip cannot be planned on; None where it can. The missing figures of an
            incomplete chip are nan or zero.
    """

    id: str
    name: str
    vendor: str
    kind: Literal["tpu", "gpu", "cpu"]
    aliases: tuple[str, ...]
    constants: str
    peak_flops: Mapping[str, float]
    hbm_bytes: int
    hbm_marketing_bytes: int
    hbm_bandwidth: float
    network: Network
    chips_per_host: int
    devices_per_chip: int
    price_usd_per_hour: float | None
    slices: SliceRule | None
    compiler: CompilerTarget | None
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    incomplete: str | None

    @property
    def bf16_flops(self) -> float:
        """Dense bf16 FLOP/s of one chip; the book's C."""
        return self.peak_flops["bf16"]

    def fact(self, fact_id: str) -> Fact | None:
        """The fact of that id, such as "network.axis_bidi_bandwidth"."""
        return next((fact for fact in self.facts if fact.id == fact_id), None)

    def __hash__(self) -> int:
        """Chips are data: one per id and profile of constants."""
        return hash((self.id, self.constants))
