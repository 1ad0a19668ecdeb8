"""Models small enough to compile in seconds, their layouts, batches and states."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from muster.hardware import parse_cluster
from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config
from muster.planner.plan_file import PlannedRun
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.sharding.rules import padded_table
from muster.sharding.torus import Piece
from muster.training.attention import balanced_order
from muster.training.batch import Batch
from muster.training.experts import DROPLESS, Dispatch
from muster.training.optimizer import OptimizerConfig, Rates, learning_rates
from muster.training.params import array_shape
from muster.training.partition import Partition
from muster.training.setup import Program, jax_dtype, make_model, make_program
from muster.training.step import Metrics, Objective, TrainState

type Array = np.ndarray[Any, Any]

B, T, V = 8, 32, 256

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "vocab_size": V,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,  # so that five steps of training show in the loss
    "attention_bias": False,
    "mlp_bias": False,
}
EXPERTS: dict[str, Any] = {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}


def architecture(**changes: Any) -> Architecture:
    """A LLaMA of 2 layers, D 32, F 48, 4 query heads of 8 on 2 KV heads, V 256; or a variant."""
    return architecture_from_config({**CONFIG, **changes}, name="tiny")


def planned(
    model: Architecture,
    layout: Layout | None = None,
    *,
    remat: Remat = Remat.NONE,
    rows: int = B,
    tokens: int = T,
    chips: int = 8,
    param_dtype: str = "f32",
    compute_dtype: str = "f32",
    optimizer_dtype: str = "f32",
) -> PlannedRun:
    """A plan as a file would hold it, float32 unless told otherwise."""
    return PlannedRun(
        architecture=model,
        cluster=parse_cluster(f"cpu:{chips}"),
        workload=Workload(
            sequence_length=tokens,
            batch_sequences=rows,
            remat=remat.value,
            param_dtype=param_dtype,
            compute_dtype=compute_dtype,
            optimizer_dtype=optimizer_dtype,
        ),
        layout=layout or Layout(),
        remat=remat,
        step_seconds=1.0,
        mfu=0.5,
        flops_per_token=1e6,
        document={},
    )


def optimizer(**changes: Any) -> OptimizerConfig:
    """AdamW at a rate that shows within five steps."""
    return OptimizerConfig(
        **{"total_steps": 5, "learning_rate": 3e-3, "warmup_steps": 2, **changes}
    )


# Code of the same arithmetic that takes half as long to make.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def numbers(model: Architecture, place: Partition, seed: int = 0) -> dict[str, Array]:
    """Parameters as numpy draws them: matrices of spread 0.1, scales around 1."""
    drawn = {}
    for weight in padded_table(model, place.layout):
        draw = np.random.default_rng([seed, zlib.crc32(weight.name.encode())])
        values = 0.1 * draw.standard_normal(array_shape(weight))
        values += weight.init == "ones"
        for axis, dim in enumerate(weight.dims):
            if dim == "vocab":
                values[(slice(None),) * axis + (slice(model.vocab_size, None),)] = 0
        drawn[weight.name] = values.astype(np.float32)
    return drawn


def state_of(program: Program, params: Mapping[str, Array]) -> TrainState:
    """A state at step 0 with given parameters and empty moments, made without compiling."""
    moments = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), program.state.optimizer)
    like = {name: program.state.params[name].dtype for name in params}
    whole = TrainState(
        step=np.zeros((), np.int32),  # type: ignore[arg-type]
        params={name: array.astype(like[name]) for name, array in params.items()},  # type: ignore[misc]
        optimizer=moments,
    )
    return jax.device_put(whole, jax.tree.map(lambda leaf: leaf.sharding, program.state))


@dataclass(frozen=True)
class Trainer:
    """A compiled step with its program."""

    program: Program
    step: jax.stages.Compiled
    rates: Rates

    @property
    def place(self) -> Partition:
        return self.program.model.partition

    def state(self, seed: int = 0) -> TrainState:
        """A fresh state, the same under every layout."""
        return state_of(self.program, numbers(self.program.model.architecture, self.place, seed))

    def take(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One step on a batch of whole rows."""
        new: tuple[TrainState, Metrics] = self.step(
            state, on(self.place, batch), self.rates[int(state.step)]
        )
        return new

    def run(self, batches: Iterable[Batch], seed: int = 0) -> tuple[TrainState, list[Metrics]]:
        """The last state and each step's metrics, from a fresh state."""
        state, found = self.state(seed), []
        for batch in batches:
            state, metrics = self.take(state, batch)
            found.append(jax.device_get(metrics))
        return state, found

    def losses(self, batches: Iterable[Batch], seed: int = 0) -> list[float]:
        """The loss of each step, from a fresh state."""
        return [float(metrics.loss) for metrics in self.run(batches, seed)[1]]


def trainer(
    plan: PlannedRun,
    *,
    update: OptimizerConfig | None = None,
    objective: Objective | None = None,
    dispatch: Dispatch = DROPLESS,
    partition: Callable[[Partition], Partition] = lambda place: place,
) -> Trainer:
    """Compile a plan's step, on what `partition` makes of its mesh."""
    update = update or optimizer(moments_dtype=jax_dtype(plan.workload.optimizer_dtype))
    model = make_model(plan, dispatch=dispatch)
    model = replace(model, partition=partition(model.partition))
    program = make_program(plan.workload, model, update, objective or Objective())
    return Trainer(program, program.lowered().compile(QUICKLY), learning_rates(update))


class AsTpus(Partition):
    """CPUs that are asked for the forms that a torus of TPUs has."""

    @property
    def on_cpu(self) -> bool:
        return False

    @property
    def on_tpu(self) -> bool:
        return True


def as_tpus(place: Partition) -> Partition:
    """The same mesh, each of its axes a physical one of a torus."""
    shape = place.mesh.shape
    pieces = {
        axis: (Piece(number, ways, ways, 1),)
        for number, (axis, ways) in enumerate(shape.items())
        if ways > 1
    }
    held = {each.name: getattr(place, each.name) for each in fields(place)}
    return AsTpus(**held | {"pieces": pieces, "gathers_at_once": True})


def on(place: Partition, batch: Batch) -> Batch:
    """A batch of whole rows on a mesh, its tokens in the order that the mesh wants."""
    ways, length = place.layout.sequence, batch.tokens.shape[1]
    order = balanced_order(length, ways) if ways > 1 else np.arange(length)
    return jax.device_put(jax.tree.map(lambda leaf: leaf[:, order], batch), place.tokens)


def packed(seed: int, *, rows: int = B, tokens: int = T, vocab: int = V) -> Batch:
    """Rows of one to four documents of uneven lengths, most with padding behind them."""
    draw = np.random.default_rng(seed)
    parts = [_row(draw, tokens, vocab, full=row == 0) for row in range(rows)]
    leaves = [np.stack(leaf) for leaf in zip(*parts, strict=True)]
    return Batch(
        tokens=leaves[0],
        targets=leaves[1],
        positions=leaves[2],
        segments=leaves[3],
        weights=leaves[4].astype(np.float32),
    )


def _row(draw: np.random.Generator, tokens: int, vocab: int, *, full: bool) -> tuple[Array, ...]:
    ids, targets, positions, segments, weights = (np.zeros(tokens, np.int32) for _ in range(5))
    first, number = 0, 1
    end = tokens if full else int(draw.integers(tokens // 2, tokens + 1))
    while first < end:
        length = min(int(draw.integers(1, tokens // 2 + 1)), end - first)
        document = draw.integers(0, vocab, length)
        own = slice(first, first + length)
        ids[own] = document
        targets[first : first + length - 1] = document[1:]
        positions[own] = np.arange(length)
        segments[own] = number
        weights[first : first + length - 1] = 1
        first, number = first + length, number + 1
    return ids, targets, positions, segments, weights


def whole_rows(ids: Array) -> Batch:
    """Rows of one document each; all tokens but the last have something to predict."""
    weights = np.ones(ids.shape, np.float32)
    weights[:, -1] = 0
    return Batch(
        tokens=ids.astype(np.int32),
        targets=np.roll(ids, -1, axis=1).astype(np.int32),
        positions=np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape),
        segments=np.ones(ids.shape, np.int32),
        weights=weights,
    )
