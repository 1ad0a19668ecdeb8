"""How compute and communication grow with the batch, for each strategy: the book's own figure.

One layer's forward pass in the closed form of `roofline.communication`, with the book's widths (two
D x F matrices), so that a strategy's traffic hides from the very batch that `planner.rules` names:
FSDP over every chip, tensor parallelism over every chip (on GPUs over one NVLink domain beside
FSDP, as it goes no further), their best split, and gradients between slices.

Source: "How to Scale Your Model", Part 5, "How to Parallelize a Transformer for Training", and Part
12, "How to Think About GPUs".

Legend: B tokens of a slice's batch, D d_model, X FSDP ways, Y tensor ways, M_X and M_Y torus axes
of each, C FLOP/s of a chip, W bytes/s of one axis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from muster.hardware import Cluster, Loopback, Switched, Torus
from muster.models.architecture import Architecture
from muster.planner.constraints import divisors
from muster.roofline.communication import (
    LayerTimes,
    Widths,
    average_widths,
    book_widths,
    layer_times,
    optimal_split,
)
from muster.roofline.links import links_of, torus_axes

ALWAYS, NEVER = 0.0, float("inf")
# Batches in which a crossing is looked for, in tokens, and halvings of their logarithm.
LEAST, MOST, HALVINGS = 1e-3, 1e15, 80


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to use all chips of a slice; `seconds` is its communication for a batch of tokens.

    Attributes:
        name: for people.
        kind: what is split.
    """

    name: str
    kind: Literal["fsdp", "tensor", "mixed", "dcn"]
    seconds: Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class BookLayer:
    """The mean layer on a cluster: what its times depend on."""

    cluster: Cluster
    D: int
    widths: Widths

    def times(self, batch: float, X: float, Y: float, *, all_axes: bool = False) -> LayerTimes:
        """Of a batch of all slices; tensor parallelism on one axis, or alone on `all_axes`."""
        links = links_of(self.cluster, tensor=round(Y))
        tensor = links_of(self.cluster, tensor=1).fsdp if all_axes else links.tensor
        return layer_times(
            B=batch / self.cluster.slices,
            D=self.D,
            widths=self.widths,
            X=X,
            Y=Y,
            C=self.cluster.chip.bf16_flops,
            W=tensor,
            M_X=links.fsdp / tensor,
            M_Y=1,
        )

    @property
    def chips(self) -> int:
        """Of one slice."""
        return self.cluster.slice.chips

    def math(self, batch: float) -> float:
        """Compute, however the chips are used."""
        return self.times(batch, 1, self.chips).math

    def fsdp(self, batch: float) -> float:
        """FSDP over every chip; between NVLink domains a ring of so few sends that much less."""
        return self.times(batch, self.chips, 1).fsdp * self._ring(1)

    def tensor(self, batch: float) -> float:
        """Tensor parallelism over every chip."""
        return self.times(batch, 1, self.chips, all_axes=True).tensor

    def mixed(self, batch: float) -> float:
        """The best split of the chips between the two."""
        network = self.cluster.chip.network
        if isinstance(network, Switched):
            ways = [y for y in divisors(self.chips) if y <= network.domain_chips]
            return min(self._split(batch, y) for y in ways)
        return min(self._torus_split(batch, network), self.fsdp(batch), self.tensor(batch))

    def _torus_split(self, batch: float, network: Torus | Loopback) -> float:
        """The optimum of the closed form, tensor parallelism on one axis, FSDP on the others."""
        axes = torus_axes(self.cluster.slice)
        if isinstance(network, Loopback) or len(axes) < 2:
            return NEVER
        M_X, M_Y, B = sum(axes[1:]), axes[0], batch / self.cluster.slices
        split = optimal_split(B=B, n=self.chips, widths=self.widths, M_X=M_X, M_Y=M_Y)
        times = layer_times(
            B=B,
            D=self.D,
            widths=self.widths,
            X=split.fsdp,
            Y=split.tensor,
            C=self.cluster.chip.bf16_flops,
            W=network.axis_bidi_bandwidth,
            M_X=M_X,
            M_Y=M_Y,
        )
        return times.communication

    def in_domain(self, batch: float) -> float:
        """Tensor parallelism over a whole NVLink domain, FSDP over the domains."""
        network = self.cluster.chip.network
        assert isinstance(network, Switched)
        return self._split(batch, network.domain_chips)

    def dcn(self, batch: float) -> float:
        """Gradients between slices, beside the forward pass (see `planner.closed_form`)."""
        del batch
        bandwidth = links_of(self.cluster, tensor=1).dcn
        assert bandwidth is not None
        return 4 * self.D * self.widths.stored / (self.chips * bandwidth)

    def _split(self, batch: float, Y: int) -> float:
        times = self.times(batch, self.chips / Y, Y)
        return max(times.fsdp * self._ring(Y), times.tensor)

    def _ring(self, Y: int) -> float:
        network = self.cluster.chip.network
        if not isinstance(network, Switched) or self.chips <= network.domain_chips:
            return 1.0
        domains = -(-self.chips // network.domain_chips)
        return (domains - 1) / domains if network.domain_chips >= Y else 1.0


def book_layer(architecture: Architecture, cluster: Cluster) -> BookLayer | None:
    """The layer as the book has it; None where it has no MLP, or one chip to split over."""
    widths = average_widths(architecture, book_widths)
    if not widths.active or cluster.slice.chips == 1:
        return None
    return BookLayer(cluster=cluster, D=architecture.d_model, widths=widths)


def strategies(layer: BookLayer) -> Iterator[Strategy]:
    """Every strategy that the cluster's network has room for."""
    network = layer.cluster.chip.network
    yield Strategy(name="FSDP alone", kind="fsdp", seconds=layer.fsdp)
    if isinstance(network, Switched) and layer.chips > network.domain_chips:
        name = f"tensor {network.domain_chips} ways, FSDP over the rest"
        yield Strategy(name=name, kind="tensor", seconds=layer.in_domain)
    else:
        yield Strategy(name="tensor alone", kind="tensor", seconds=layer.tensor)
    if not isinstance(network, Loopback):
        yield Strategy(name="both at their best split", kind="mixed", seconds=layer.mixed)
    if layer.cluster.slices > 1:
        yield Strategy(name="gradients between slices", kind="dcn", seconds=layer.dcn)


def hides_from(layer: BookLayer, strategy: Strategy) -> float:
    """The batch from which on compute hides a strategy's traffic: ALWAYS, NEVER, or tokens.

    Compute grows with the batch at least as fast as any traffic, so there is one crossing.
    """
    low, high = LEAST, MOST
    if layer.math(low) >= strategy.seconds(low):
        return ALWAYS
    if layer.math(high) < strategy.seconds(high):
        return NEVER
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        if layer.math(middle) >= strategy.seconds(middle):
            high = middle
        else:
            low = middle
    return high
