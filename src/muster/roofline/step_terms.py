"""The terms of one step, and of the microbatches that it is made of."""

from dataclasses import dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Seconds that each kind of traffic of one step takes by itself.

    Attributes:
        stage: activations and their derivatives between pipeline stages.
        host: offloaded activations out and back.
    """

    fsdp: float = 0.0
    tensor: float = 0.0
    sequence: float = 0.0
    expert: float = 0.0
    data: float = 0.0
    dcn: float = 0.0
    stage: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """One after the other."""
        inside = self.fsdp + self.tensor + self.sequence + self.expert
        return inside + self.data + self.dcn + self.stage + self.host


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by term; the terms sum to `total`.

    Attributes:
        compute: matmuls and attention kernels, with what is computed again.
        hbm: elementwise work, the loss, the optimizer's update.
        fsdp: weights gathered and gradients scattered, that nothing hides.
        tensor: activations between tensor-parallel chips.
        sequence: keys and values between the parts of a sequence.
        expert: tokens to their experts and back.
        data: gradients between replicas in one slice, and between both ends of a pipeline that
            share an embedding table.
        dcn: gradients (and sharded weights) between slices.
        bubble: waiting in the pipeline, and sending between its stages.
        host: waiting for the host's memory, and for the slowest host.
        traffic: what each kind of traffic takes by itself.
    """

    compute: float
    hbm: float
    fsdp: float
    tensor: float
    sequence: float
    expert: float
    data: float
    dcn: float
    bubble: float
    host: float
    traffic: Traffic

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.hbm + self.exposed + self.bubble + self.host

    @property
    def exposed(self) -> float:
        """Traffic between chips that nothing hides."""
        return self.fsdp + self.tensor + self.sequence + self.expert + self.data + self.dcn

    @property
    def terms(self) -> dict[str, float]:
        """Every term by its name."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "traffic"
        }


@dataclass(frozen=True, slots=True)
class LayersSeconds:
    """All layers together, for one microbatch on one chip, as if it held them all.

    Attributes:
        forward: matmuls and mixing kernels.
        backward: the same.
        rerun: what of the forward ones runs again.
        moved: elementwise work, what runs again included.
        offloaded_bytes: what waits in the host's memory.
    """

    forward: float
    backward: float
    rerun: float
    moved: float
    offloaded_bytes: float

    @property
    def matmuls(self) -> float:
        """All of them."""
        return self.forward + self.backward + self.rerun


@dataclass(frozen=True, kw_only=True, slots=True)
class Microbatch:
    """Seconds of one microbatch on one chip, as if it held all layers.

    Attributes:
        matmuls: with the mixing kernels.
        moved: elementwise work through HBM.
        fsdp: what nothing hides; so for `tensor`, `sequence`, `expert` and `host`.
        all_fsdp: what the traffic takes by itself; so for the other `all_` ones.
    """

    matmuls: float
    moved: float
    fsdp: float
    tensor: float
    sequence: float
    expert: float
    host: float
    all_fsdp: float
    all_tensor: float
    all_sequence: float
    all_host: float

    @property
    def idle(self) -> float:
        """Work that no traffic of the layers hides behind yet."""
        everything = self.all_fsdp + self.all_tensor + self.all_sequence
        hidden = everything - self.fsdp - self.tensor - self.sequence
        return max(0.0, self.matmuls + self.moved - hidden)

    @property
    def total(self) -> float:
        """What passes until the next microbatch."""
        work = self.matmuls + self.moved
        return work + self.fsdp + self.tensor + self.sequence + self.expert + self.host


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Seconds of the traffic of embedding and head for one microbatch, as if one chip had both.

    Attributes:
        tensor: what nothing hides of the activations between tensor-parallel chips.
        fsdp: the same of their weights and gradients.
        all_tensor: what the traffic takes by itself.
        all_fsdp: the same.
    """

    tensor: float
    fsdp: float
    all_tensor: float
    all_fsdp: float

    @property
    def visible(self) -> float:
        """What nothing hides."""
        return self.tensor + self.fsdp


class Held(NamedTuple):
    """Parameters that one chip keeps: those that every token meets, and of routed experts."""

    dense: float
    routed: float


class Gradients(NamedTuple):
    """Seconds of the gradients' traffic by itself.

    Attributes:
        data: between replicas.
        tied: between the first and the last stage, which share an embedding table.
        dcn: between slices.
    """

    data: float
    tied: float
    dcn: float
