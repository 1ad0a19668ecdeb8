"""The Plan: the one object that passes through plan, verify, train and launch, and its JSON."""

from dataclasses import asdict, dataclass, fields

from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.binding import Bound
from muster.planner.closed_form import Candidate
from muster.planner.nearest import Change
from muster.planner.rules import Rule
from muster.planner.search import Choice
from muster.roofline.fabric import physical_axes
from muster.roofline.flops import FlopCount
from muster.roofline.params import ParamCounts
from muster.roofline.step_memory import StepMemory
from muster.roofline.training_time import time_of_steps
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step and the run cost.

    Attributes:
        flops_per_token: 6 x active parameters, the convention of the MFU below.
        flops: the exact count of every matmul with causal attention, and what is computed again.
        step_seconds: predicted, or from the MFU that was assumed; the run's figures follow from it.
        at_peak_seconds: the step's 6N FLOPs at the peak of `chips`.
        mfu: at_peak_seconds over step_seconds, so in the 6N convention.
        mfu_causal: the same step's MFU in the convention of exact matmuls with causal attention.
        assumed: whether the user gave the MFU.
        chips: those that the MFU is of, and that are paid for: those that the layout fills, but
            all that were asked about where the MFU was assumed and nothing asked for fewer.
        bound: the resource that is busy longest.
        train_seconds: of the whole run, as the three after it; None where no corpus was given.
    """

    flops_per_token: int
    flops: FlopCount
    flops_per_step: int
    train_flops: int | None
    step_seconds: float
    at_peak_seconds: float
    mfu: float
    mfu_causal: float
    assumed: bool
    chips: int
    tokens_per_second_per_chip: float
    bound: Bound
    train_seconds: float | None
    train_days: float | None
    chip_hours: float | None
    cost_usd: float | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to "how do I train this model on these chips?".

    Attributes:
        choice: the layout, its recomputation policy, predicted step and memory.
        closed_form: what the book's optimum rounds to; None where nothing divides.
        alternatives: the best of the other meshes that fit, best first.
        examined: steps that the search predicted.
        reasons: why this layout, in sentences.
        warnings: what the reader must know before spending chip-hours, one line each.
        nearest: where it does not fit, the changes under which it would, the nearest first.
        bookable: where the slices that the plan fills are larger than any that can be scheduled,
            the best on as many chips in slices that can be.
        obstacles: why `muster train` cannot carry this plan out, one line each; none where it can.
        trainable: where it cannot, the best that it could, if the model itself can be trained.
    """

    architecture: Architecture
    params: ParamCounts
    cluster: Cluster
    workload: Workload
    choice: Choice
    estimate: Estimate
    rules: tuple[Rule, ...]
    closed_form: Candidate | None
    alternatives: tuple[Choice, ...]
    examined: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    nearest: tuple[Change, ...] = ()
    bookable: Choice | None = None
    obstacles: tuple[str, ...] = ()
    trainable: Choice | None = None

    @property
    def layout(self) -> Layout:
        """Ways of every mesh axis."""
        return self.choice.layout

    @property
    def memory(self) -> StepMemory:
        """Bytes on the fullest chip."""
        return self.choice.memory

    @property
    def fits(self) -> bool:
        """Whether the fullest chip's memory suffices."""
        return self.memory.fits

    def to_json(self) -> dict[str, object]:
        """The plan as `plan.json` holds it (schema 1); a null is a figure that is not predicted."""
        compiler = self.cluster.chip.compiler
        return {
            "muster": SCHEMA,
            "model": {
                "name": self.architecture.name,
                "architecture": architecture_json(self.architecture),
                "config": dict(self.architecture.config),
                "params": asdict(self.params),
            },
            "cluster": {
                "chip": self.cluster.chip.id,
                "slice": self.cluster.slice.name,
                "slices": self.cluster.slices,
                "chips": self.cluster.chips,
                "constants": self.cluster.chip.constants,
                "filled": self.choice.cluster.name,
                "bookable": self.bookable.cluster.name if self.bookable else None,
            },
            "workload": _workload_json(self.workload),
            "layout": {
                **asdict(self.layout),
                "chips_used": self.layout.chips_used,
                "torus": physical_axes(self.choice.cluster, self.layout),
            },
            "compiler": {"options": dict(compiler.options) if compiler else {}},
            "estimate": _estimate_json(self.estimate, self.choice),
            "rules": [asdict(rule) for rule in self.rules],
            "closed_form": _closed_form_json(self.closed_form),
            "alternatives": [self._alternative_json(other) for other in self.alternatives],
            "nearest": [self._change_json(change) for change in self.nearest],
            "bookable": self._alternative_json(self.bookable) if self.bookable else None,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "training": {
                "trainable": not self.obstacles,
                "obstacles": list(self.obstacles),
                "instead": self._alternative_json(self.trainable) if self.trainable else None,
            },
        }

    def _alternative_json(self, choice: Choice) -> dict[str, object]:
        return {
            "layout": {**asdict(choice.layout), "chips_used": choice.layout.chips_used},
            "cluster": choice.cluster.name,
            "remat": choice.remat.value,
            "step_seconds": choice.seconds,
            "seconds": _seconds_json(choice),
            "memory_per_chip": _memory_json(choice.memory),
            **asdict(run_cost(self.workload, choice)),
        }

    def _change_json(self, change: Change) -> dict[str, object]:
        workload = change.workload
        return {
            "changes": list(change.kinds),
            "text": change.text,
            "batch_sequences": workload.batch_sequences,
            "sequence_length": workload.sequence_length,
            "optimizer_dtype": workload.optimizer_dtype,
            **self._alternative_json(change.choice),
        }


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """What a choice costs: chip-seconds of a step; of the run where a corpus was given."""

    chip_seconds_per_step: float
    chip_hours: float | None
    cost_usd: float | None


def run_cost(workload: Workload, choice: Choice) -> RunCost:
    """What a run costs in a layout, at its predicted step and the list price of its chips."""
    chips = choice.layout.chips_used
    count, price = workload.steps, choice.cluster.chip.price_usd_per_hour
    run = time_of_steps(count, choice.seconds, chips=chips) if count is not None else None
    return RunCost(
        chip_seconds_per_step=chips * choice.seconds,
        chip_hours=run.chip_hours if run else None,
        cost_usd=run.cost(price) if run and price is not None else None,
    )


def architecture_json(architecture: Architecture) -> dict[str, object]:
    """The architecture as words: the typical layer's sizes, and every distinct layer in full."""
    return {
        "family": architecture.family,
        "d_model": architecture.d_model,
        "d_ff": architecture.d_ff,
        "num_layers": architecture.num_layers,
        "num_heads": architecture.num_heads,
        "num_kv_heads": architecture.num_kv_heads,
        "head_dim": architecture.head_dim,
        "vocab_size": architecture.vocab_size,
        "num_experts": architecture.experts.num_experts if architecture.experts else None,
        "experts_per_token": (
            architecture.experts.experts_per_token if architecture.experts else None
        ),
        "tied_embeddings": architecture.tied_embeddings,
        "context_length": architecture.context_length,
        "rope": _plain(architecture.rope),
        "layers": [
            {"count": count, **_tagged(layer)} for layer, count in architecture.layer_groups
        ],
        "filled_in": dict(architecture.filled_in),
    }


def _tagged(part: object) -> dict[str, object]:
    """A dataclass as an object whose nested parts say of which kind they are."""
    return {
        field.name: _plain(getattr(part, field.name))
        for field in fields(part)  # type: ignore[arg-type]
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {"kind": _kind(value), **_tagged(value)}
    return value


def _kind(part: object) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(part).__name__).lstrip("_")


def _workload_json(workload: Workload) -> dict[str, object]:
    return {
        "sequence_length": workload.sequence_length,
        "batch_sequences": workload.batch_sequences,
        "batch_tokens": workload.batch_tokens,
        "train_tokens": workload.train_tokens,
        "param_dtype": workload.param_dtype,
        "compute_dtype": workload.compute_dtype,
        "optimizer": workload.optimizer,
        "optimizer_dtype": workload.optimizer_dtype,
        "master_copy": workload.master_copy,
        "gradient_dtype": workload.gradient_dtype or workload.param_dtype,
        "remat": workload.remat,
        "attention": workload.attention,
    }


STEP_TERMS = ("compute", "hbm", "fsdp", "tensor", "sequence", "expert", "data", "dcn", "bubble")


def _estimate_json(estimate: Estimate, choice: Choice) -> dict[str, object]:
    return {
        "flops_per_token": estimate.flops_per_token,
        "flops_per_token_causal": estimate.flops.model_per_token,
        "flops_per_token_recomputed": estimate.flops.recompute / estimate.flops.sequence_length,
        "flops_per_step": estimate.flops_per_step,
        "train_flops": estimate.train_flops,
        "step_seconds": estimate.step_seconds,
        "mfu": estimate.mfu,
        "mfu_convention": "6N, assumed" if estimate.assumed else "6N, predicted",
        "mfu_causal": estimate.mfu_causal,
        "tokens_per_second_per_chip": estimate.tokens_per_second_per_chip,
        "bound": estimate.bound,
        "seconds": _seconds_json(choice),
        "memory_per_chip": _memory_json(choice.memory),
        "train_seconds": estimate.train_seconds,
        "train_days": estimate.train_days,
        "chip_hours": estimate.chip_hours,
        "cost_usd": estimate.cost_usd,
    }


def _seconds_json(choice: Choice) -> dict[str, float]:
    step = choice.step
    return {
        **{term: getattr(step, term) for term in STEP_TERMS},
        "host": step.host,
        "exposed": step.exposed,
        "total": step.total,
    }


def _memory_json(memory: StepMemory) -> dict[str, object]:
    return {
        "params": memory.params,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "logits": memory.logits,
        "workspace": memory.gathered + memory.workspace + memory.reserve,
        "workspace_parts": {
            "gathered": memory.gathered,
            "recomputed": memory.workspace,
            "reserve": memory.reserve,
        },
        "total": memory.total,
        "usable": memory.usable,
        "host": memory.host,
        "stage": memory.stage,
    }


def _closed_form_json(candidate: Candidate | None) -> dict[str, object] | None:
    if candidate is None:
        return None
    return {
        "layout": {**asdict(candidate.layout), "chips_used": candidate.layout.chips_used},
        "compute_bound": candidate.compute_bound,
        "layer_forward_seconds": {
            "math": candidate.math,
            "fsdp": candidate.fsdp,
            "tensor": candidate.tensor,
            "dcn": candidate.dcn,
        },
    }
