"""Where arrays live: the mesh of a layout, and how weights and activations are laid over it.

The rules themselves are `muster.sharding.rules`; here they become JAX's objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.sharding.mesh import Layout
from muster.sharding.rules import BATCH_AXES, mesh_axes, padded_table
from muster.sharding.weight import Weight

LAYERS = "layers."
AXES = ("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor")


def make_mesh(layout: Layout, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of a layout, outermost axis first, on the first of `devices` that it needs.

    On TPUs JAX orders the devices so that neighbours on an axis are neighbours on the torus.

    Raises:
        BadInput: there are fewer devices than the layout has chips.
    """
    available = list(jax.devices() if devices is None else devices)
    shape = tuple(getattr(layout, axis) for axis in AXES)
    if len(available) < layout.chips_used:
        raise BadInput(
            f"the layout is for {layout.chips_used:,} devices and there are {len(available):,}"
        )
    used = available[: layout.chips_used]
    if used[0].platform == "tpu" and layout.slice == 1:
        from jax.experimental import mesh_utils  # noqa: PLC0415

        grid = mesh_utils.create_device_mesh(shape, used, allow_split_physical_axes=True)
    elif used[0].platform == "tpu":
        from jax.experimental import mesh_utils  # noqa: PLC0415

        grid = mesh_utils.create_hybrid_device_mesh(
            (1, *shape[1:]),
            (layout.slice, *(1,) * (len(shape) - 1)),
            used,
            allow_split_physical_axes=True,
        )
    else:
        grid = np.asarray(used).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A mesh with the layout that it was made for.

    Attributes:
        sequence_parallel: whether activations between blocks split T over `tensor` too.
    """

    mesh: Mesh
    layout: Layout
    sequence_parallel: bool = True

    @cached_property
    def batch_axes(self) -> tuple[str, ...]:
        """Mesh axes over which the batch dim is split."""
        return BATCH_AXES

    @cached_property
    def residual(self) -> NamedSharding:
        """Of the activations between blocks, [B, T, D]."""
        tokens = ("sequence", "tensor") if self.sequence_parallel else ("sequence",)
        return self.named(BATCH_AXES, tokens, None)

    @cached_property
    def whole_tokens(self) -> NamedSharding:
        """Of what a block's first matmuls read, [B, T, D]: each chip's tokens gathered."""
        return self.named(BATCH_AXES, "sequence", None)

    @cached_property
    def heads(self) -> NamedSharding:
        """Of queries and attention outputs, [B, T, N, H]."""
        return self.named(BATCH_AXES, "sequence", "tensor", None)

    @cached_property
    def hidden(self) -> NamedSharding:
        """Of what lies between the matmuls of an MLP, [B, T, F]."""
        return self.named(BATCH_AXES, "sequence", "tensor")

    @cached_property
    def tokens(self) -> NamedSharding:
        """Of a batch's leaves, [B, T]."""
        return self.named(BATCH_AXES, "sequence")

    def kv_heads(self, number: int) -> NamedSharding:
        """Of keys and values, [B, T, K, H]: whole where `tensor` does not divide K."""
        axis = "tensor" if number % self.layout.tensor == 0 else None
        return self.named(BATCH_AXES, "sequence", axis, None)

    @cached_property
    def replicated(self) -> NamedSharding:
        """Of a scalar that every device holds."""
        return self.named()

    def named(self, *spec: str | tuple[str, ...] | None) -> NamedSharding:
        """A sharding over this mesh."""
        return NamedSharding(self.mesh, P(*spec))

    def weight(self, weight: Weight) -> NamedSharding:
        """Of a weight's array, stacked over the layers in front if it is a layer's."""
        return NamedSharding(self.mesh, weight_spec(weight, self.layout))

    def params(self, architecture: Architecture) -> dict[str, NamedSharding]:
        """Of every parameter."""
        return {
            weight.name: self.weight(weight) for weight in padded_table(architecture, self.layout)
        }


def weight_spec(weight: Weight, layout: Layout) -> P:
    """The PartitionSpec of a weight's array.

    >>> from muster.sharding.weight import matmul
    >>> up = matmul("layers.mlp.up", "mlp", (4096, 14336), ("d_model", "d_ff"))
    >>> weight_spec(up, Layout(fsdp=16, tensor=4))
    P(None, 'fsdp', 'tensor')
    """
    stacked: tuple[None, ...] = (None,) if weight.name.startswith(LAYERS) else ()
    entries = (_entry(axes) for axes in mesh_axes(weight, layout))
    return P(*stacked, *entries)


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if len(axes) <= 1:
        return axes[0] if axes else None
    return axes
