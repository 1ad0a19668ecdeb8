"""What one training run works on: sizes and number formats."""

from dataclasses import dataclass, replace
from typing import Literal

from muster.roofline.memory import Optimizer
from muster.roofline.software import Software
from muster.roofline.training_time import steps


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training run's sizes and formats.

    Attributes:
        sequence_length: T, tokens of one sequence.
        batch_sequences: sequences of one global batch.
        train_tokens: tokens of the whole run; None where it was not said.
        gradient_dtype: of the gradients that are kept; None where they are as the parameters.
        gather_dtype: in which weights travel between chips.
        reduce_dtype: in which gradients travel between chips.
        master_copy: whether the optimizer keeps float32 parameters beside the trained ones.
        remat: the recomputation policy; None until the planner has chosen one.
    """

    sequence_length: int
    batch_sequences: int
    train_tokens: int | None = None
    param_dtype: str = "bf16"
    compute_dtype: str = "bf16"
    optimizer: Optimizer = "adamw"
    optimizer_dtype: str = "f32"
    gradient_dtype: str | None = None
    gather_dtype: str = "bf16"
    reduce_dtype: str = "bf16"
    master_copy: bool = False
    remat: str | None = None
    attention: Literal["causal"] = "causal"
    warnings: tuple[str, ...] = ()

    @property
    def batch_tokens(self) -> int:
        """B: tokens of one global batch."""
        return self.batch_sequences * self.sequence_length

    @property
    def steps(self) -> int | None:
        """Optimizer steps that see at least the whole corpus."""
        return None if self.train_tokens is None else steps(self.train_tokens, self.batch_tokens)


def usual_formats(workload: Workload, software: Software) -> Workload:
    """The same with the number formats that a software's users train in.

    Megatron-LM keeps half-precision weights beside float32 masters, moments and gradients, and sums
    gradients between replicas in float32 (its `Float16Module` with
    `accumulate_allreduce_grads_in_fp32`): 18 bytes a parameter, of which 12 are the optimizer's.
    PyTorch FSDP keeps one float32 copy and casts it. XLA programs do either: they stay as they are.
    """
    if software.name.startswith("megatron") or software.name == "simumax":
        return replace(
            workload,
            param_dtype="bf16",
            master_copy=True,
            optimizer_dtype="f32",
            gradient_dtype="f32",
            reduce_dtype="f32",
        )
    if software.name in {"torch", "compiled"}:
        return replace(workload, param_dtype="f32", optimizer_dtype="f32", reduce_dtype="f32")
    return workload
