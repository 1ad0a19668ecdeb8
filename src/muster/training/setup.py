"""From a plan to a step that is ready to run: model, optimizer, shardings, compiled program."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.models.numerics import numerics
from muster.planner.plan_file import PlannedRun
from muster.planner.step_choices import DEFAULT_STEP, StepChoices
from muster.planner.trainable import training_obstacles
from muster.roofline.remat import Remat
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.sharding.placing import Torus
from muster.training.attention import Masking, attention_for
from muster.training.batch import Batch
from muster.training.experts import DROPLESS, Dispatch
from muster.training.mesh import make_mesh, torus_pieces
from muster.training.model import Attend, Model
from muster.training.optimizer import OptimizerConfig, make_optimizer
from muster.training.params import Params, abstract_params, init_params
from muster.training.partition import Partition
from muster.training.step import (
    Metrics,
    Objective,
    TrainState,
    state_shardings,
    train_step,
)

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def jax_dtype(name: str) -> str:
    """JAX's name of a format that a plan names.

    Raises:
        BadInput: the trainer has no such format.

    >>> jax_dtype("bf16")
    'bfloat16'
    """
    if name not in DTYPES:
        raise BadInput(f"the trainer cannot compute in {name}; choose from {', '.join(DTYPES)}")
    return DTYPES[name]


def make_model(
    planned: PlannedRun,
    devices: Sequence[jax.Device] | None = None,
    *,
    dispatch: Dispatch = DROPLESS,
) -> Model:
    """The model of a plan, on the mesh of its layout.

    Raises:
        BadInput: the trainer cannot carry out the plan, or there are too few devices.
    """
    workload = planned.workload
    layout = device_layout(planned)
    obstacle = next(
        training_obstacles(planned.architecture, layout, workload.sequence_length), None
    )
    if obstacle:
        raise BadInput(f"this plan cannot be trained here: {obstacle}")
    choices = replace(planned.step, gathers_at_once=planned.gathers_at_once)
    if (devices or jax.devices())[0].platform != "cpu":  # there the loss knows better
        choices = replace(choices, loss_chunk_tokens=planned.loss_chunk_tokens)
    return model_on(
        planned.architecture,
        layout,
        workload.sequence_length,
        compute_dtype=jax_dtype(workload.compute_dtype),
        remat=planned.remat,
        dispatch=dispatch,
        devices=devices,
        choices=choices,
        torus=planned.torus,
        rows_first=compiler.rows_first if (compiler := planned.cluster.chip.compiler) else True,
    )


def _attend(
    architecture: Architecture,
    mesh: Mesh,
    sequence_length: int,
    dtype: jnp.dtype,
    choices: StepChoices,
) -> tuple[Attend, str]:
    """The attention that suits the mesh's devices and the model's shapes, and its name and why."""
    N, K, H = architecture.num_heads, architecture.num_kv_heads, architecture.head_dim
    assert N is not None
    assert K is not None
    assert H is not None
    chosen = attention_for(
        mesh,
        sequence_length=sequence_length,
        query_heads=N,
        kv_heads=K,
        head_dim=H,
        dtype=dtype,
        documents=most_documents(sequence_length),
        blocks=choices.attention_blocks,
    )

    def mixed(
        q: jax.Array, k: jax.Array, v: jax.Array, batch: Batch, window: int | None
    ) -> jax.Array:
        mask = Masking(segments=batch.segments, window=window)
        return chosen.attend(q, k, v, mask=mask, scale=H**-0.5)

    return mixed, f"{chosen.name}: {chosen.why}"


def most_documents(sequence_length: int) -> int:
    """Documents that a row may hold where a kernel must know: one every 16 tokens, and padding.

    The feed refuses rows of more.
    """
    return sequence_length // 16 + 1


def device_layout(planned: PlannedRun) -> Layout:
    """A plan's layout over devices instead of chips.

    A chip of two devices (TPU v2, v3, 7x) splits its share once more: by whole sequences if it has
    several, else each sequence, as pieces of a batch need the least traffic.

    Raises:
        BadInput: neither its sequences nor their tokens can be split once more.
    """
    layout, workload = planned.layout, planned.workload
    number = planned.cluster.chip.devices_per_chip
    if number == 1:
        return layout
    local = workload.batch_sequences // (layout.batch_ways * layout.microbatches)
    if local % number == 0:
        return replace(layout, fsdp=layout.fsdp * number)
    if workload.sequence_length % (2 * layout.sequence * number) == 0:
        return replace(layout, sequence=layout.sequence * number)
    raise BadInput(
        f"{planned.cluster.chip.id} chips have {number} devices each, and neither {local} sequences"
        f" nor pieces of {workload.sequence_length // layout.sequence} tokens split between them"
    )


def model_on(
    architecture: Architecture,
    layout: Layout,
    sequence_length: int,
    *,
    compute_dtype: str,
    remat: Remat = Remat.NONE,
    dispatch: Dispatch = DROPLESS,
    devices: Sequence[jax.Device] | None = None,
    choices: StepChoices = DEFAULT_STEP,
    torus: Torus | None = None,
    rows_first: bool = True,
) -> Model:
    """A model in a layout on the devices that are there.

    Raises:
        BadInput: the model's arithmetic is not known here, or there are too few devices.
    """
    numerics(architecture)
    mesh, dtype = make_mesh(layout, devices, torus), jnp.dtype(compute_dtype)
    whole = sequence_length % (layout.sequence * layout.tensor) == 0
    pieces = torus_pieces(layout, list(mesh.devices[0].flat), torus)
    attend, attention = _attend(architecture, mesh, sequence_length, dtype, choices)
    return Model(
        architecture=architecture,
        partition=Partition(
            mesh=mesh,
            layout=layout,
            sequence_parallel=whole,
            gathers_at_once=bool(choices.gathers_at_once),
            rows_first=rows_first,
            pieces=pieces,
        ),
        attend=attend,
        attention=attention,
        compute_dtype=dtype,
        remat=remat,
        dispatch=dispatch,
        choices=choices,
    )


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training step with everything that it is laid out by.

    Attributes:
        state: shapes, formats and shardings of the state.
        batch: the same of a batch.
    """

    model: Model
    optimizer: optax.GradientTransformation
    objective: Objective
    state: TrainState
    batch: Batch

    def lowered(self) -> jax.stages.Lowered:
        """The step, traced and lowered for its devices, its state donated."""
        step = partial(
            train_step, model=self.model, optimizer=self.optimizer, objective=self.objective
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        everywhere = self.model.partition.replicated
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
        return jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(shardings, everywhere),
        ).lower(self.state, self.batch, rate)


def make_program(
    workload: Workload, model: Model, optimizer: OptimizerConfig, objective: Objective
) -> Program:
    """Lay out the state and the batch of a model's training step; nothing is allocated.

    Chunks of the loss are those of the objective, else those that the plan chose.
    """
    place, update = model.partition, make_optimizer(optimizer)
    params = abstract_params(model.architecture, place, jnp.dtype(jax_dtype(workload.param_dtype)))
    abstract = TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32),  # type: ignore[arg-type]
        params=params,  # type: ignore[arg-type]
        optimizer=jax.eval_shape(update.init, params),
    )
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract,
        state_shardings(abstract, model),
    )
    return Program(
        model=model,
        optimizer=update,
        objective=replace(
            objective,
            chunk_tokens=objective.chunk_tokens or model.choices.loss_chunk_tokens,
        ),
        state=state,
        batch=abstract_batch(workload, place),
    )


def abstract_batch(workload: Workload, place: Partition) -> Batch:
    """A batch's shapes, formats and shardings."""
    shape = (workload.batch_sequences, workload.sequence_length)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=place.tokens)
    weights = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place.tokens)
    return Batch(
        tokens=ids,  # type: ignore[arg-type]
        targets=ids,  # type: ignore[arg-type]
        positions=ids,  # type: ignore[arg-type]
        segments=ids,  # type: ignore[arg-type]
        weights=weights,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A step that runs.

    Attributes:
        seconds: that tracing and compiling took.
    """

    run: "jax.stages.Compiled"
    seconds: float

    def __call__(self, state: TrainState, batch: Batch, rate: float) -> tuple[TrainState, Metrics]:
        """One step at a learning rate; the old state's memory is taken over."""
        new: tuple[TrainState, Metrics] = self.run(state, batch, np.float32(rate))
        return new


def compile_program(program: Program, options: Mapping[str, str] | None = None) -> Compiled:
    """Compile a step, or take it from the cache of compiled programs.

    Args:
        program: the step.
        options: of the TPU compiler; other devices' compilers are not given them.
    """
    begun = time.perf_counter()
    on_tpu = program.model.partition.mesh.devices.flat[0].platform == "tpu"
    run = program.lowered().compile(dict(options or {}) if on_tpu else None)
    return Compiled(run=run, seconds=time.perf_counter() - begun)


def fresh_state(program: Program, seed: int, params: Params | None = None) -> TrainState:
    """A state at step 0: drawn parameters, or given ones, and empty moments."""
    model, abstract = program.model, program.state
    if params is None:
        dtype = next(iter(abstract.params.values())).dtype
        params = init_params(model.architecture, model.partition, dtype, seed)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract.optimizer)
    moments = jax.jit(program.optimizer.init, out_shardings=shardings)(params)
    step = jax.device_put(jnp.zeros((), jnp.int32), model.partition.replicated)
    return TrainState(step=step, params=params, optimizer=moments)
