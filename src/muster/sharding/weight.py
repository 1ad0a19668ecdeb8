"""One weight: a named parameter tensor with its sizes, logical dims and role.

Logical dims and their letters: layers L, d_model D, d_ff F, heads N, kv_heads K, head_dim H,
vocab V, experts E.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from muster.models.architecture import Norm

type Component = Literal[
    "embedding", "attention", "recurrence", "mlp", "experts", "norm", "head", "extra", "tower"
]
type Role = Literal["matmul", "lookup", "vector"]
type Init = Literal["normal", "ones", "zeros"]

LETTERS = {
    "d_model": "D",
    "d_ff": "F",
    "heads": "N",
    "kv_heads": "K",
    "head_dim": "H",
    "vocab": "V",
    "experts": "E",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One named parameter tensor, and how many layers have one of this shape.

    Attributes:
        shape: sizes of one copy, without the layer axis.
        dims: logical dim of each size.
        role: `matmul` costs 2 FLOPs a parameter and token, `lookup` and `vector` none that count.
        copies: layers that carry one.
        active_share: (used, of) experts for a routed expert's weight, else None.
        trainable: False for a buffer that a checkpoint stores but no gradient reaches.
    """

    name: str
    component: Component
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    role: Role = "matmul"
    init: Init = "normal"
    copies: int = 1
    active_share: tuple[int, int] | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        """Hold the invariant that every size has a dim."""
        assert len(self.shape) == len(self.dims), self

    @property
    def size(self) -> int:
        """Parameters of one copy."""
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.size

    @property
    def active_count(self) -> int:
        """Parameters that one token meets, of all copies."""
        if self.active_share is None:
            return self.count
        used, of = self.active_share
        return self.count * used // of

    def formula(self, legend: Mapping[str, int]) -> str:
        """The count as a product, e.g. `L*D*N*H`.

        Args:
            legend: letters with their numbers. A size that is not its letter's number stands as a
                number itself, so that the product always evaluates to `count`.
        """
        copies = [] if self.copies == 1 else [_letter("L", self.copies, legend)]
        sizes = [
            _letter(LETTERS.get(dim, ""), size, legend)
            for dim, size in zip(self.dims, self.shape, strict=True)
            if size != 1
        ]
        return "*".join(copies + sizes) or "1"


def _letter(letter: str, size: int, legend: Mapping[str, int]) -> str:
    return letter if legend.get(letter) == size else str(size)


def matmul(
    name: str, component: Component, shape: tuple[int, ...], dims: tuple[str, ...]
) -> Weight:
    """A matrix that every token is multiplied by."""
    return Weight(name=name, component=component, shape=shape, dims=dims)


def vector(
    name: str, component: Component, shape: tuple[int, ...], dims: tuple[str, ...]
) -> Weight:
    """A bias or another vector: parameters whose FLOPs do not count."""
    return Weight(
        name=name, component=component, shape=shape, dims=dims, role="vector", init="zeros"
    )


def norm_vectors(
    name: str, norm: Norm, shape: tuple[int, ...], dims: tuple[str, ...]
) -> Iterator[Weight]:
    """The learned vectors of a norm: a scale, a bias, both or neither."""
    if norm.scale:
        yield replace(vector(name, "norm", shape, dims), init="ones")
    if norm.bias:
        yield vector(f"{name}.bias", "norm", shape, dims)
