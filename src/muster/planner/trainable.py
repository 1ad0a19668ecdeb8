"""Whether the trainer can carry out a layout, and why not: one reason a line."""

from collections.abc import Iterator

from muster.models.architecture import Architecture
from muster.models.numerics import untrainable
from muster.sharding.mesh import Layout
from muster.sharding.rules import unsplit


def training_obstacles(
    architecture: Architecture, layout: Layout, sequence_length: int
) -> Iterator[str]:
    """Why `muster train` cannot run this model in this layout; nothing where it can."""
    problem = untrainable(architecture)
    if problem:
        yield problem
    yield from layout_obstacles(architecture, layout, sequence_length)


def layout_obstacles(
    architecture: Architecture, layout: Layout, sequence_length: int
) -> Iterator[str]:
    """Why the trainer cannot run a layout, whatever the model computes."""
    if layout.stage > 1:
        yield f"the trainer has no pipeline yet, and this layout has {layout.stage} stages"
    if (uneven := next(unsplit(architecture, layout), None)) is not None:
        yield (
            f"{layout.weight_shards} weight shards do not divide D = {architecture.d_model} "
            f"({uneven}), and XLA splits arrays evenly"
        )
    pieces = 2 * layout.sequence  # a chip holds an early and a late piece: balanced causal work
    if layout.sequence > 1 and sequence_length % pieces:
        yield f"{layout.sequence} sequence ways need {pieces} equal pieces of {sequence_length}"
