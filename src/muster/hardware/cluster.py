"""A cluster: one or several equal slices, joined by the data-center network."""

from dataclasses import dataclass, field

from muster.hardware.chip import Chip
from muster.hardware.slice import Slice


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a model is planned on.

    Attributes:
        slice: one slice.
        slices: how many of it.
        notes: how an ambiguous name was read; not part of what the cluster is.
    """

    slice: Slice
    slices: int = 1
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def chip(self) -> Chip:
        """The chip of every slice."""
        return self.slice.chip

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.slice.chips * self.slices

    @property
    def name(self) -> str:
        """The canonical name: "v5p:16x20x28" or "4xv5p:16x20x28"."""
        return self.slice.name if self.slices == 1 else f"{self.slices}x{self.slice.name}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a planner should know: one line each."""
        return (*self.notes, *self.slice.warnings, *self._multislice_warnings())

    def _multislice_warnings(self) -> tuple[str, ...]:
        rule = self.chip.slices
        if self.slices == 1 or not rule or not 0 < rule.max_multislice_chips < self.chips:
            return ()
        return (
            f"{self.name} is {self.chips} chips; multislice is documented up to "
            f"{rule.max_multislice_chips} {self.chip.id} chips",
        )
