"""`muster train`: carry out a plan on the devices that are there."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.asked import Asked, spelled
from muster.cli.extras import needs_training
from muster.cli.options import JSON, Strict, fixed_ways
from muster.cli.paths import expanded
from muster.errors import BadInput
from muster.planner.plan_file import PlannedRun, planned_run, read_plan
from muster.units import parse_batch

if TYPE_CHECKING:
    from muster.hardware import Cluster
    from muster.models.architecture import Architecture
    from muster.training.devices import Job
    from muster.training.job import TrainingJob
    from muster.training.loop import OnNan
    from muster.training.optimizer import Schedule

SYNTHETIC = "synthetic"
# Sizes of a run that was given none, so that a first try on a processor ends while one watches.
SEQUENCE_ON_CPU = 256
SEQUENCES_A_DEVICE = 1
SAVES = 10
LEAST_SAVE_EVERY = 25
# What a plan file has decided.
PLANNED = ("hardware", "batch", "seq", "remat", "param_dtype", "compute_dtype", "optimizer_dtype")


@click.command(cls=Strict)
@click.argument("plan_or_model", metavar="PLAN|MODEL")
@click.option(
    "--data",
    multiple=True,
    metavar="PATH",
    help="Text, .jsonl, .parquet, .arrayrecord "
    "files, saved datasets, folders of them; `synthetic` for random tokens.",
)
@click.option(
    "--on",
    "hardware",
    metavar="HARDWARE",
    help="Plan for this: cpu:8, v5p-8, h100:8.  [default: what is here]",
)
@click.option("--steps", metavar="N", help="Optimizer steps of the whole run.")
@click.option("--batch", metavar="TOKENS", help="Global batch: 8seq, 4M (Mi).")
@click.option("--seq", metavar="N", help="Sequence length.")
@click.option(
    "--out",
    "folder",
    metavar="RUN_DIR",
    help="Checkpoints and metrics; a run that is there goes on.  [default: runs/MODEL]",
)
@click.option("--seed", default=0, show_default=True, metavar="N")
@click.option(
    "--tokenizer",
    default="bytes",
    show_default=True,
    metavar="FILE",
    help="A tokenizer.json or its folder, or `bytes`.",
)
@click.option("--text-key", default="text", show_default=True, metavar="KEY")
@click.option("--no-packing", is_flag=True, help="One document a row, padded or cut.")
@click.option(
    "--init",
    "initial",
    metavar="CKPT",
    help="Start from these weights (of `muster import`, or of another run).",
)
@click.option("--lr", type=float, metavar="F", help="Peak learning rate.  [default: by size]")
@click.option("--warmup", metavar="N", help="Steps of warmup.  [default: a tenth, at most 2000]")
@click.option(
    "--schedule", default="cosine", metavar="S", help="cosine (default), linear, constant."
)
@click.option("--weight-decay", type=float, default=0.1, show_default=True, metavar="F")
@click.option(
    "--clip",
    type=float,
    default=1.0,
    show_default=True,
    metavar="F",
    help="Global norm of gradients at most; 0 for any.",
)
@click.option("--z-loss", type=float, default=0.0, show_default=True, metavar="F")
@click.option(
    "--experts",
    default="dropless",
    show_default=True,
    metavar="HOW",
    help="dropless, or capacity=1.25.",
)
@click.option(
    "--fix", multiple=True, metavar="AXIS=N", help="Hold a mesh axis of the plan made here."
)
@click.option("--remat", metavar="POLICY", help="none, minimal, outputs, full, offload.")
@click.option("--param-dtype", metavar="DTYPE", help="f32 (default), bf16.")
@click.option("--compute-dtype", metavar="DTYPE", help="f32, bf16.  [default: f32 on a processor]")
@click.option("--optimizer-dtype", metavar="DTYPE", help="f32 (default), bf16.")
@click.option("--save-every", metavar="N", help="Steps between checkpoints.  [default: a tenth]")
@click.option("--keep-last", default=3, show_default=True, metavar="N")
@click.option("--keep-every", type=int, metavar="N", help="Also keep every multiple of N.")
@click.option("--on-nan", default="stop", metavar="WHAT", help="stop (default) or skip.")
@click.option(
    "--processes",
    default=1,
    show_default=True,
    metavar="N",
    help="Run N processes on this machine, as on N hosts.",
)
@click.option(
    "--distributed",
    is_flag=True,
    help="Join the other hosts of the cluster's own environment (GKE, Slurm, TPU VM).",
)
@click.option("--coordinator", metavar="HOST:PORT", help="Join the hosts that meet here.")
@click.option("--process-count", type=int, metavar="N", help="With --coordinator: how many.")
@click.option("--process-id", type=int, metavar="N", help="With --coordinator: which, from 0.")
@JSON
@needs_training
def train(**options: object) -> int:
    """Train MODEL, or carry out the plan in a file, on the devices that are there.

    A run folder that holds checkpoints is resumed. SIGTERM saves and ends with status 0.
    """
    asked = Asked(options)
    if asked.whole("processes") > 1:
        from muster.training.processes import run_processes, without_processes

        return run_processes(asked.whole("processes"), without_processes(sys.argv[1:]))
    return _train(asked)


def _train(asked: Asked) -> int:
    from muster.report.training_progress import Silent, TerminalProgress
    from muster.training.devices import start
    from muster.training.job import run_job
    from muster.training.processes import die_with_parent

    die_with_parent()
    target = asked.text("plan_or_model")
    assert target is not None
    plan = _plan_file(target)
    planned = _with_choices(read_plan(plan), asked) if plan else None
    if not asked.texts("data"):
        raise BadInput("no data to train on; give --data PATH, or --data synthetic")
    if asked.text("on_nan") not in {"stop", "skip"}:
        raise BadInput(f"--on-nan {asked.text('on_nan')!r}; choose from stop, skip")
    architecture = planned.architecture if planned else _model(target)
    cluster = planned.cluster if planned else _cluster(asked)
    start(cluster, _job_of(asked))
    planned = planned or _planned_here(architecture, cluster, asked)
    job = _training_job(planned, asked)
    import jax

    watcher = (
        Silent()
        if asked.flag("as_json") or jax.process_index() > 0
        else TerminalProgress(None if planned.cluster.chip.kind == "cpu" else planned.mfu)
    )
    lines: list[str] = []
    try:
        outcome = run_job(job, watcher)
        if outcome.last is not None:
            lines.append(
                f"{'stopped by ' + outcome.stopped_by if outcome.stopped_by else 'done'} at step "
                f"{outcome.step:,}: loss {outcome.last.loss:.4f}; {job.folder} holds checkpoints, "
                "plan.json and metrics.jsonl"
            )
    finally:
        watcher.ended(tuple(lines))
    if asked.flag("as_json") and jax.process_index() == 0:
        document = {
            "muster": 1,
            "run": str(job.folder),
            "step": outcome.step,
            "stopped_by": outcome.stopped_by,
            "last": asdict(outcome.last) if outcome.last else None,
        }
        click.echo(json.dumps(document, indent=1))
    return 130 if outcome.stopped_by == "SIGINT" else 0


def _plan_file(text: str) -> Path | None:
    """The file of a plan; None for a model, which may be a config.json too."""
    from muster.planner.plan_file import MOST_BYTES, is_plan

    path = expanded(text, "PLAN|MODEL", "plan or model")
    if not text.endswith(".json") or not path.is_file():
        return None
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return path if is_plan(json.loads(path.read_bytes())) else None
    except (OSError, ValueError, RecursionError):
        return None


def _model(text: str) -> "Architecture":
    from muster.models.registry import find_model

    return find_model(text)


def _cluster(asked: Asked) -> "Cluster | None":
    from muster.hardware import parse_cluster

    hardware = asked.text("hardware")
    return parse_cluster(hardware) if hardware is not None else None


def _job_of(asked: Asked) -> "Job":
    from muster.training.devices import Job

    names = ("coordinator", "process_count", "process_id")
    given = [name for name in names if asked.text(name) is not None]
    if not given:
        return Job(distributed=asked.flag("distributed"))
    if lacking := [spelled(name) for name in names if name not in given]:
        raise BadInput(f"{spelled(given[0])} needs {' and '.join(lacking)} beside it")
    processes, process = asked.whole("process_count"), asked.natural("process_id")
    if process >= processes:
        raise BadInput(f"--process-id {process} of {processes}; they count from 0")
    return Job(coordinator=asked.text("coordinator"), processes=processes, process=process)


def _planned_here(
    architecture: "Architecture", cluster: "Cluster | None", asked: Asked
) -> PlannedRun:
    """The best plan that the trainer can carry out, for the hardware asked for or found."""
    from muster.hardware import parse_cluster
    from muster.planner.build import make_plan
    from muster.planner.search import Restrictions
    from muster.planner.workload import make_workload
    from muster.roofline.remat import parse_remat
    from muster.training.devices import hardware_here

    if cluster is None:
        cluster = parse_cluster(hardware_here())
    context = architecture.context_length or SEQUENCE_ON_CPU
    if cluster.chip.kind != "cpu" and asked.text("batch") is None:
        raise BadInput("how large a batch? give --batch TOKENS, as 4M or 1024seq")
    on_cpu = cluster.chip.kind == "cpu"
    sequence = asked.count("seq") or (min(context, SEQUENCE_ON_CPU) if on_cpu else None)
    batch = asked.text("batch") or f"{SEQUENCES_A_DEVICE * cluster.chips}seq"
    remat = asked.text("remat")
    workload = make_workload(
        architecture,
        parse_batch(batch),
        sequence_length=sequence,
        param_dtype=asked.text("param_dtype") or "f32",
        optimizer_dtype=asked.text("optimizer_dtype") or "f32",
    )
    restrictions = Restrictions(
        fixed=fixed_ways(asked.texts("fix")),
        remat=parse_remat(remat) if remat is not None else None,
        trainable=True,
    )
    plan = make_plan(architecture, cluster, workload, restrictions=restrictions)
    if not plan.fits:
        raise BadInput(
            f"{architecture.name} does not fit on {cluster.name} with this batch; "
            "`muster plan` says what would"
        )
    document = json.loads(json.dumps(plan.to_json()))
    document["workload"]["compute_dtype"] = asked.text("compute_dtype") or (
        "f32" if on_cpu else "bf16"
    )
    return planned_run(document, where="the plan made here")


def _with_choices(planned: PlannedRun, asked: Asked) -> PlannedRun:
    """A plan file decides by itself; what contradicts it is refused rather than ignored."""
    for name in PLANNED:
        if asked.text(name) is not None:
            raise BadInput(f"{spelled(name)} is the plan's to say; make the plan anew with it")
    if asked.texts("fix"):
        raise BadInput("--fix is the plan's to say; make the plan anew with it")
    return planned


def _training_job(planned: PlannedRun, asked: Asked) -> "TrainingJob":
    from muster.models.numerics import numerics
    from muster.roofline.params import param_counts
    from muster.training.data import DataConfig
    from muster.training.experts import parse_dispatch
    from muster.training.job import TrainingJob, usual_learning_rate
    from muster.training.optimizer import OptimizerConfig
    from muster.training.setup import jax_dtype
    from muster.training.step import Objective

    steps = asked.count("steps") or planned.workload.steps
    if steps is None:
        raise BadInput("how long? give --steps N (or a plan that was made with --tokens)")
    data = asked.texts("data")
    if SYNTHETIC in data and len(data) > 1:
        raise BadInput("--data synthetic is of random tokens alone; leave out the other --data")
    rate = asked.number("lr")
    warmup = asked.text("warmup")
    architecture = planned.architecture
    return TrainingJob(
        planned=planned,
        data=DataConfig(
            paths=tuple(
                expanded(path, "--data", "file or folder") for path in data if path != SYNTHETIC
            ),
            synthetic=data == (SYNTHETIC,),
            sequence_length=planned.workload.sequence_length,
            batch_sequences=planned.workload.batch_sequences,
            tokenizer=asked.text("tokenizer") or "bytes",
            seed=asked.natural("seed"),
            packing=not asked.flag("no_packing"),
            text_key=asked.text("text_key") or "text",
        ),
        optimizer=OptimizerConfig(
            total_steps=steps,
            learning_rate=(
                rate
                if rate is not None
                else usual_learning_rate(param_counts(architecture).trainable)
            ),
            warmup_steps=(
                asked.natural("warmup") if warmup is not None else min(2000, steps // 10)
            ),
            schedule=_schedule(asked.text("schedule") or "cosine"),
            weight_decay=asked.number("weight_decay") or 0.0,
            clip_norm=asked.number("clip") or 0.0,
            moments_dtype=jax_dtype(planned.workload.optimizer_dtype),
        ),
        objective=Objective(
            z_loss=asked.number("z_loss") or 0.0,
            router_loss=numerics(architecture).router_loss,
        ),
        folder=asked.path("folder") or Path("runs") / _slug(architecture.name),
        seed=asked.natural("seed"),
        dispatch=parse_dispatch(asked.text("experts") or "dropless"),
        initial=asked.path("initial"),
        save_every=asked.count("save_every") or min(1000, max(LEAST_SAVE_EVERY, steps // SAVES)),
        keep_last=asked.whole("keep_last"),
        keep_every=asked.count("keep_every"),
        on_nan=_on_nan(asked.text("on_nan")),
    )


def _schedule(text: str) -> "Schedule":
    from muster.training.optimizer import SCHEDULES

    for known in SCHEDULES:
        if text == known:
            return known
    raise BadInput(f"--schedule {text!r}; choose from {', '.join(SCHEDULES)}")


def _on_nan(text: str | None) -> "OnNan":
    return "skip" if text == "skip" else "stop"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-") or "model"
