"""What one layer computes again, matmul by matmul: the step-time side of recomputation.

A layer's matmuls in eight parts, by the names of MaxText's checkpoint policies:

    query key value   what attention (or another mixer) is fed with
    mixing            attention's own products, a recurrence's scan
    out               the mixer's last projection
    gate up           into the MLP or its experts (a plain MLP has `up` alone)
    down              out of it

Each of muster's named policies (`Remat`) is one such set; `custom` gives any other.

Source: see `roofline.remat`.
"""

from dataclasses import dataclass

from muster.roofline.remat import Remat

PARTS = ("query", "key", "value", "mixing", "out", "gate", "up", "down")
INTO_MIXER = frozenset({"query", "key", "value"})
INTO_MLP = frozenset({"gate", "up"})


@dataclass(frozen=True, kw_only=True)
class RematPolicy:
    """What runs again in the backward pass, and what waits in the host's memory.

    Attributes:
        name: for people.
        rerun: parts of a layer whose forward matmul runs again.
        elementwise: whether norms, activation functions and the like are computed again.
        offloaded: of `PARTS` and `input`, what waits in the host's memory.
        layers_share: share of the layers that this holds for; the others keep everything.
    """

    name: str
    rerun: frozenset[str] = frozenset()
    elementwise: bool = True
    offloaded: frozenset[str] = frozenset()
    layers_share: float = 1.0

    def keeps(self, part: str) -> bool:
        """Whether what a part gives is kept, on the chip or on the host.

        Parts are those of a `SavedTensor`, so `input` and `elementwise` too.
        `down` is never kept where the MLP runs again: it runs to its end, or nothing reads it.
        """
        if part == "elementwise":
            return not self.elementwise
        return part not in self.rerun and not (part == "down" and self.runs_to_its_end)

    @property
    def runs_to_its_end(self) -> bool:
        """Whether the MLP runs again but for `down`, which does too where its result is read."""
        return bool(self.rerun & INTO_MLP) and "down" not in self.rerun


def remat_policy(remat: Remat, *, whole_layer: bool = False) -> RematPolicy:
    """The parts that a named policy computes again.

    Args:
        remat: the named policy.
        whole_layer: PyTorch and Megatron run the whole layer again, also what nothing reads.

    >>> sorted(remat_policy(Remat.OUTPUTS).rerun)
    ['gate', 'key', 'mixing', 'query', 'up', 'value']
    """
    everything = frozenset(PARTS)
    match remat:
        case Remat.NONE:
            return RematPolicy(name=remat.value, elementwise=False)
        case Remat.MINIMAL:
            return RematPolicy(name=remat.value)
        case Remat.OFFLOAD:
            return RematPolicy(name=remat.value, offloaded=everything | {"input"})
        case Remat.OUTPUTS:
            again = INTO_MIXER | INTO_MLP | {"mixing"}
        case Remat.FULL:
            again = everything - {"down"}
    return RematPolicy(name=remat.value, rerun=everything if whole_layer else again)
