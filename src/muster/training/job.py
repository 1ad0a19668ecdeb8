"""One training job from its choices to its end: what `muster train` does behind its options."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from muster.errors import BadInput
from muster.models.hf_config import architecture_from_config
from muster.models.numerics import Numerics, numerics
from muster.planner.plan_file import PlannedRun
from muster.roofline.params import param_counts
from muster.training.checkpoints import Checkpoints, bytes_of
from muster.training.data import DataConfig
from muster.training.experts import DROPLESS, Dispatch
from muster.training.feed import Feed
from muster.training.loop import LoopConfig, OnNan, Outcome, Pace, train
from muster.training.metrics import check_writable
from muster.training.optimizer import OptimizerConfig, learning_rates
from muster.training.progress import Watcher
from muster.training.setup import (
    Program,
    compile_program,
    fresh_state,
    make_model,
    make_program,
    most_documents,
)
from muster.training.step import Objective, TrainState
from muster.training.stopping import StopRequests
from muster.units import format_bytes, format_count

PLAN = "plan.json"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
# Half of a bf16 number's last place is 1/512 of it: smaller updates vanish.
BF16_WARNING = (
    "parameters in bf16 without a float32 copy: updates below 1/512 of a weight are rounded away; "
    "--param-dtype f32 (of muster plan, or here) keeps them"
)
# A resumed run must agree with its checkpoint in these, or its batches would be others.
SAME_BATCHES = (
    "batch_sequences",
    "sequence_length",
    "seed",
    "shuffle",
    "packing",
    "tokenizer",
    "data",
)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Every choice of a run.

    Attributes:
        folder: RUN_DIR.
        seed: of fresh parameters; the data has its own in `data`.
        initial: a checkpoint whose weights the run starts from, or None for fresh ones.
        save_every: steps between checkpoints.
        keep_last: newest checkpoints to keep.
        keep_every: also keep every multiple of this step.
    """

    planned: PlannedRun
    data: DataConfig
    optimizer: OptimizerConfig
    objective: Objective
    folder: Path
    seed: int = 0
    dispatch: Dispatch = DROPLESS
    initial: Path | None = None
    save_every: int = 1000
    keep_last: int = 3
    keep_every: int | None = None
    on_nan: OnNan = "stop"


def usual_learning_rate(parameters: int) -> float:
    """The peak learning rate that people use for a model's size.

    Above a billion parameters LLaMA's (3e-4, and 1.5e-4 from 30 billion on; arXiv:2302.13971, table
    2); below, the fit of Kaplan et al. (arXiv:2001.08361, equation D.1): 0.003239 - 0.0001395 ln N.

    >>> usual_learning_rate(8_000_000_000)
    0.0003
    >>> round(usual_learning_rate(1_000_000), 5)
    0.00131
    """
    import math  # noqa: PLC0415

    if parameters >= 30e9:
        return 1.5e-4
    if parameters >= 1e9:
        return 3e-4
    return max(3e-4, 0.003239 - 0.0001395 * math.log(parameters))


def run_job(job: TrainingJob, watcher: Watcher) -> Outcome:
    """Train, from the newest checkpoint of the run's folder if it has one.

    Nothing is written before data, devices and folder are known to be usable.

    Raises:
        BadInput: something that the user gave cannot be used.
        AnswerIsNo: the loss is not finite.
        SaveFailed: a checkpoint could not be written; those before are untouched.
    """
    planned = job.planned
    check_devices(planned)
    check_writable(job.folder)
    model = make_model(planned, dispatch=job.dispatch)
    program = make_program(planned.workload, model, job.optimizer, job.objective)
    feed = Feed(
        job.data,
        planned.architecture.vocab_size,
        end_of_text(planned),
        model.partition,
        most_documents(job.data.sequence_length) if model.attention.startswith("cudnn") else None,
    )
    try:
        checkpoints = Checkpoints(
            job.folder / CHECKPOINTS,
            vocab_size=planned.architecture.vocab_size,
            keep_last=job.keep_last,
            keep_every=job.keep_every,
        )
        options = recorded_options(job, feed)
        with StopRequests() as stop:
            state = _beginning(job, program, checkpoints, feed, options, watcher)
            checkpoints.check_room(bytes_of(program.state))  # the first thing that is written
            return _train(job, program, checkpoints, feed, options, state, watcher, stop)
    finally:
        feed.close()


def _train(
    job: TrainingJob,
    program: Program,
    checkpoints: Checkpoints,
    feed: Feed,
    options: Mapping[str, Any],
    state: TrainState,
    watcher: Watcher,
    stop: StopRequests,
) -> Outcome:
    planned = job.planned
    done, steps = int(state.step), job.optimizer.total_steps
    if done >= steps:
        watcher.note(
            f"{job.folder} has {done:,} steps already; train further with a larger --steps"
        )
        return Outcome(step=done, stopped_by=None, last=None)
    watcher.begun(tuple(_what(job, feed, program.model.attention, done)))
    if planned.workload.param_dtype == "bf16":
        watcher.note(BF16_WARNING)
    step = compile_program(program, planned.compiler_options)
    watcher.compiled(step.seconds)
    if stop.name is not None:  # nothing was trained that a checkpoint could keep
        return Outcome(step=done, stopped_by=stop.name, last=None)
    if jax.process_index() == 0:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / PLAN).write_text(json.dumps(planned.document, indent=1) + "\n", "utf-8")
    config = LoopConfig(
        steps=steps,
        save_every=job.save_every,
        on_nan=job.on_nan,
        meta={
            "muster": 1,
            "plan": dict(planned.document),
            "config": dict(planned.architecture.config),
            "name": planned.architecture.name,
            "options": dict(options),
            "versions": {name: version(name) for name in ("muster", "jax", "optax")},
        },
        learning_rates=learning_rates(job.optimizer),
        pace=Pace(
            planned_step_seconds=planned.step_seconds,
            planned_mfu=planned.mfu,
            batch_tokens=planned.workload.batch_tokens,
        ),
    )
    with checkpoints, only_run(job.folder):
        return train(
            state,
            step=step,
            feed=feed,
            checkpoints=checkpoints,
            config=config,
            folder=job.folder,
            watcher=watcher,
            stop=stop,
        )


def check_devices(planned: PlannedRun) -> None:
    """Make sure that this job has the devices that the plan is for.

    Raises:
        BadInput: fewer, or of another kind; says how many, and how to plan for those.
    """
    devices = jax.devices()
    kind = planned.cluster.chip.kind
    wanted = planned.layout.chips_used * planned.cluster.chip.devices_per_chip
    here = f"{len(devices):,} {devices[0].device_kind} device{'s' * (len(devices) != 1)}"
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(devices[0].platform, devices[0].platform)
    if platform == kind and len(devices) >= wanted:
        return
    name = planned.architecture.name.lower()
    offer = f"cpu:{len(devices)}" if platform == "cpu" else "the hardware that is here"
    raise BadInput(
        f"the plan is for {wanted:,} {planned.cluster.chip.id} devices and this job has {here}; "
        f"`muster train {name} --on {offer} ...` plans for what is here"
    )


def end_of_text(planned: PlannedRun) -> int | None:
    """The end-of-document id that a model's config names."""
    stated = planned.architecture.config.get("eos_token_id")
    first = stated[0] if isinstance(stated, list) and stated else stated
    valid = isinstance(first, int) and 0 <= first < planned.architecture.vocab_size
    return first if valid else None  # type: ignore[return-value]


def recorded_options(job: TrainingJob, feed: Feed) -> dict[str, Any]:
    """What a checkpoint remembers of a run's choices."""
    return {
        "batch_sequences": job.data.batch_sequences,
        "sequence_length": job.data.sequence_length,
        "seed": job.data.seed,
        "shuffle": job.data.shuffle,
        "packing": job.data.packing,
        "tokenizer": job.data.tokenizer,
        "data": feed.stream.description.fingerprint,
        "weights": "fresh" if job.initial is None else str(job.initial),
        "layout": str(job.planned.layout),
        "remat": job.planned.remat.value,
        "parameters": job.planned.workload.param_dtype,
        "computing": job.planned.workload.compute_dtype,
        "moments": job.optimizer.moments_dtype,
        "experts": f"{job.dispatch.kind}={job.dispatch.capacity_factor}",
        "z_loss": job.objective.z_loss,
        "router_loss": job.objective.router_loss,
        "steps": job.optimizer.total_steps,
        "learning_rate": job.optimizer.learning_rate,
        "schedule": job.optimizer.schedule,
        "warmup_steps": job.optimizer.warmup_steps,
        "weight_decay": job.optimizer.weight_decay,
        "clip_norm": job.optimizer.clip_norm,
    }


def _beginning(
    job: TrainingJob,
    program: Program,
    checkpoints: Checkpoints,
    feed: Feed,
    options: Mapping[str, Any],
    watcher: Watcher,
) -> TrainState:
    """The state to go on from: the newest checkpoint's, or a fresh one."""
    if not checkpoints.found():
        return _fresh(job, program, watcher)
    abstract: dict[str, Any] = dict(program.state.params)
    restored = checkpoints.restore(abstract, program.state.optimizer)
    for line in (*restored.skipped, *restored.casts):
        watcher.note(line)
    _check_same_model(job.planned, restored.meta, job.folder)
    _check_same_batches(job, restored.meta.get("options", {}), options, watcher)
    if restored.optimizer is None or restored.data is None:
        raise BadInput(
            f"{job.folder} holds weights alone; start from them with --init {job.folder} and "
            "another --out"
        )
    feed.stream.restore(restored.data.reshape(len(restored.data), -1))
    watcher.note(f"resumed {job.folder} after step {restored.step:,}")
    step = jax.device_put(
        jax.numpy.asarray(restored.step, "int32"), program.model.partition.replicated
    )
    return TrainState(step=step, params=restored.params, optimizer=restored.optimizer)


def _fresh(job: TrainingJob, program: Program, watcher: Watcher) -> TrainState:
    if job.initial is None:
        return fresh_state(program, job.seed)
    vocab = job.planned.architecture.vocab_size
    with Checkpoints(checkpoints_folder(job.initial), vocab_size=vocab) as source:
        abstract: dict[str, Any] = dict(program.state.params)
        restored = source.restore(abstract)
    _check_same_model(job.planned, restored.meta, job.initial)
    for line in (*restored.skipped, *restored.casts):
        watcher.note(line)
    watcher.note(f"starts from the weights of {job.initial}, step {restored.step:,}")
    return fresh_state(program, job.seed, restored.params)


def checkpoints_folder(path: Path) -> Path:
    """The checkpoints of a run's folder, or the folder itself.

    Raises:
        BadInput: there is no such folder.
    """
    if not path.is_dir():
        raise BadInput(f"no folder {path}; give a run's folder or its checkpoints")
    return path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path


def _check_same_model(planned: PlannedRun, meta: Mapping[str, Any], where: Path) -> None:
    """Weights of the same shapes can be of another model: its arithmetic must be the same too."""
    config, now = meta.get("config"), planned.architecture
    if not isinstance(config, Mapping):
        return
    before = architecture_from_config(config, name=now.name)
    if replace(before, stores_tied_head=now.stores_tied_head) != now:
        raise BadInput(f"{where} is of another model: its config.json describes other layers")
    for field in fields(Numerics):
        old, new = (getattr(numerics(each), field.name) for each in (before, now))
        if old != new:
            raise BadInput(
                f"{where} is of another model: its {field.name.replace('_', ' ')} was {old} and "
                f"now is {new}"
            )


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold a run's folder while it is written to.

    Raises:
        BadInput: another process trains in it.
    """
    if jax.process_index() > 0:
        yield
        return
    with (folder / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"another run is training in {folder}; wait for it, or name another --out"
            ) from None
        yield


def _check_same_batches(
    job: TrainingJob, before: Mapping[str, Any], now: Mapping[str, Any], watcher: Watcher
) -> None:
    for key in SAME_BATCHES:
        if key in before and before[key] != now[key]:
            what = "the data's files" if key == "data" else key.replace("_", " ")
            values = "" if key == "data" else f" was {before[key]} and now is {now[key]}"
            raise BadInput(
                f"{job.folder} was trained on other batches: {what}{values or ' changed'}; keep "
                "that, or start another run with another --out"
            )
    for key, value in now.items():
        if key in before and before[key] != value and key not in SAME_BATCHES:
            watcher.note(f"{key.replace('_', ' ')} was {before[key]} and now is {value}")


def _what(job: TrainingJob, feed: Feed, attention: str, done: int) -> list[str]:
    """The lines that say what is about to happen."""
    planned, data = job.planned, feed.stream.description
    workload, layout = planned.workload, planned.layout
    params = param_counts(planned.architecture)
    files = ", ".join(
        f"{number} {kind} file{'s' * (number != 1)}" for kind, number in data.files.items()
    )
    skipped = "".join(f", {number} skipped ({why})" for why, number in data.skipped.items())
    steps = job.optimizer.total_steps
    seen = (steps - done) * workload.batch_tokens
    return [
        f"{planned.architecture.name}: {format_count(params.trainable)} parameters in "
        f"{workload.param_dtype}, computed in {workload.compute_dtype}",
        f"attention {attention}",
        f"layout {layout} on {planned.cluster.name}, remat {planned.remat.value}",
        f"plan {planned.step_seconds:.3g} s a step, MFU {planned.mfu:.1%} (6N)"
        + (", of nominal CPUs: no prediction" if planned.cluster.chip.kind == "cpu" else ""),
        f"data {format_bytes(data.bytes)}: {files or 'random tokens'} in {data.documents:,} "
        f"documents or pieces of them{skipped}; tokens by {job.data.tokenizer}",
        f"steps {done + 1:,} to {steps:,} of {workload.batch_tokens:,} tokens "
        f"({workload.batch_sequences} x {workload.sequence_length}), {format_count(seen)} in all",
        f"learning rate {job.optimizer.learning_rate:.3g}, {job.optimizer.schedule}, "
        f"{job.optimizer.warmup_steps} of warmup",
    ]
