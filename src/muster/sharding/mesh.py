"""The mesh: how many ways each of its axes splits the work.

A mesh *axis* is of the machine, a tensor *dim* is of the model. Axes, outermost first: slice (data
parallel over DCN), stage (pipeline), data (replicated), fsdp, sequence (context), expert, tensor.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ways of every mesh axis, outermost first; their product is the chips used.

    Attributes:
        slice: data parallelism between slices.
        stage: pipeline stages.
        data: replicas inside a slice.
        fsdp: ways that shard parameters and whole sequences.
        sequence: ways that shard parameters and split each sequence.
        expert: ways that shard experts.
        tensor: ways that shard heads, d_ff and vocabulary.
        microbatches: parts in which a chip takes its share of the batch, one after the other.
        virtual_stages: pieces of the pipeline that each stage holds (interleaving); 1 for none.
        shards_optimizer: whether replicas share out the optimizer's state between them (ZeRO-1).
        shards_over_slices: whether the slices shard the weights too, instead of replicating them.
    """

    slice: int = 1
    stage: int = 1
    data: int = 1
    fsdp: int = 1
    sequence: int = 1
    expert: int = 1
    tensor: int = 1
    microbatches: int = 1
    virtual_stages: int = 1
    shards_optimizer: bool = False
    shards_over_slices: bool = False

    @property
    def chips_used(self) -> int:
        """Chips that take part."""
        return self.slice * self.chips_per_slice

    @property
    def chips_per_slice(self) -> int:
        """Chips of each slice that take part."""
        return self.stage * self.data * self.fsdp * self.sequence * self.expert * self.tensor

    @property
    def weight_shards(self) -> int:
        """X: ways over which each tensor-parallel piece of the weights is sharded and gathered."""
        return self.fsdp * self.sequence * self.expert

    @property
    def batch_ways(self) -> int:
        """Ways that split the batch by whole sequences."""
        return self.slice * self.data * self.fsdp * self.expert

    def __str__(self) -> str:
        named = {
            "slice": self.slice,
            "stage": self.stage,
            "data": self.data,
            "fsdp": self.fsdp,
            "sequence": self.sequence,
            "expert": self.expert,
            "tensor": self.tensor,
        }
        ways = " x ".join(f"{axis} {size}" for axis, size in named.items() if size > 1)
        return ways or "one chip"
