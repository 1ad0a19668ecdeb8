"""A slice: chips of one pod joined by their fast network, and its names."""

import math
from dataclasses import dataclass

from muster.hardware.chip import Chip, Switched, Torus
from muster.hardware.facts import Fact
from muster.hardware.shapes import (
    Shape,
    can_twist,
    default_shape,
    format_shape,
    legal_shapes,
    wraparound,
)

_FACTS_PLANNED_WITH = (
    "flops.bf16",
    "memory.usable_bytes",
    "memory.bandwidth",
    "network.axis_bidi_bandwidth",
    "network.link_bandwidth",
    "network.dcn_bandwidth_per_chip",
    "network.scale_up_bandwidth",
    "network.scale_out_bandwidth",
    "network.loopback_bandwidth",
)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Chips that share one fast network.

    Attributes:
        chip: the chip.
        shape: chips along every dim of the torus, ascending; `(n,)` for GPUs and CPUs.
        wrap: which dims are rings; all False for GPUs and CPUs.
    """

    chip: Chip
    shape: Shape
    wrap: tuple[bool, ...]

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.shape)

    @property
    def hosts(self) -> int:
        """Hosts that hold these chips, the last one perhaps in part."""
        return -(-self.chips // self.chip.chips_per_host)

    @property
    def devices(self) -> int:
        """JAX devices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def torus_axes(self) -> int:
        """Torus axes with more than one chip; the book's M. Zero where there is no torus."""
        return sum(dim > 1 for dim in self.shape) if isinstance(self.chip.network, Torus) else 0

    @property
    def can_twist(self) -> bool:
        """Whether the vendor may build the slice as a twisted torus. No estimate depends on it."""
        return self.chip.slices is not None and can_twist(self.chip.slices, self.shape)

    @property
    def name(self) -> str:
        """The canonical name: "v5p:16x20x28", "h100:1024"."""
        return f"{self.chip.id}:{format_shape(self.shape)}"

    @property
    def accelerator_type(self) -> str | None:
        """Cloud's name, such as "v5p-128"; None where it would mean another slice or nothing.

        A type names a number of cores or chips and so only the default shape of that size.
        """
        rule = self.chip.slices
        if rule is None or default_shape(rule, self.chips) != self.shape:
            return None
        if self.chips < rule.least_type_chips:
            return None
        return f"{rule.type_prefix}-{self.chips * rule.type_units_per_chip}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a planner should know: one line each."""
        return (*self._size_warnings(), *self._domain_warnings(), *self._weak_facts())

    def _size_warnings(self) -> tuple[str, ...]:
        rule = self.chip.slices
        if rule is None or self.chips <= math.prod(rule.max_schedulable_shape):
            return ()
        largest = math.prod(rule.max_schedulable_shape)
        limit = f"{largest} chips ({format_shape(rule.max_schedulable_shape)})"
        return (
            f"{self.name} is {self.chips} chips, but the largest slice that can be scheduled is "
            f"{limit}: plan several slices to run it on Cloud",
            f"the price is that of slices up to {limit}; {self.name} has no list price",
        )

    def _domain_warnings(self) -> tuple[str, ...]:
        network = self.chip.network
        if not isinstance(network, Switched) or self.chips <= network.domain_chips:
            return ()
        full, rest = divmod(self.chips, network.domain_chips)
        if not rest:
            return ()
        return (
            f"{self.chips} GPUs do not fill scale-up domains of {network.domain_chips}: "
            f"{full} full, and {rest} GPUs of another",
        )

    def _weak_facts(self) -> tuple[str, ...]:
        if self.chip.kind == "cpu":
            return ("the figures of cpu are nominal: times and costs are no predictions",)
        facts = (self.chip.fact(fact_id) for fact_id in _FACTS_PLANNED_WITH)
        return tuple(_weak(self.chip, fact) for fact in facts if fact is not None and fact.weak)


def slice_of(chip: Chip, shape: Shape) -> Slice:
    """The slice of a legal shape, with its wraparound."""
    wrap = wraparound(chip.slices, shape) if chip.slices else (False,) * len(shape)
    return Slice(chip=chip, shape=shape, wrap=wrap)


def accelerator_types(chip: Chip) -> tuple[str, ...]:
    """Every accelerator type that means one slice of the chip, by size."""
    if chip.slices is None:
        return ()
    types = (slice_of(chip, shape).accelerator_type for shape in legal_shapes(chip.slices))
    return tuple(each for each in types if each is not None)


def _weak(chip: Chip, fact: Fact) -> str:
    note = f" ({fact.note})" if fact.note else ""
    return f"{chip.id}: {fact.id} is of {fact.confidence} confidence{note}"
