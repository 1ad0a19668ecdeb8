"""The devices that are there: started for a cluster's kind, counted, and named as hardware."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax

from muster.errors import BadInput
from muster.hardware import Cluster

# What JAX calls a device -> the chip's id in the hardware tables.
DEVICE_KINDS: Mapping[str, str] = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "v7x",
}
GPU_NAMES = ("gb300", "gb200", "b300", "b200", "h200", "h100", "h800", "a100", "a800")
# More than this only take turns on the same cores.
MOST_CPU_DEVICES = 256
CACHE = "MUSTER_COMPILE_CACHE"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process among those that train together.

    Attributes:
        coordinator: host:port of process 0; None where the cluster's own environment tells, or
            for a single process.
        processes: how many there are.
        process: this one's number.
        distributed: whether to look for the other processes in the cluster's environment.
    """

    coordinator: str | None = None
    processes: int = 1
    process: int = 0
    distributed: bool = False


def start(cluster: Cluster | None, job: Job) -> None:
    """Prepare JAX before it is first asked for a device.

    A CPU cluster of n chips becomes n devices of this machine's processor, shared out between the
    processes of the job. Compiled programs are kept between runs (under `MUSTER_COMPILE_CACHE`,
    by default in the user's cache folder).

    Raises:
        BadInput: the devices of a CPU cluster do not divide over the processes, or the other
            processes cannot be reached.
    """
    if cluster is not None and cluster.chip.kind == "cpu":
        if cluster.chips > MOST_CPU_DEVICES:
            raise BadInput(
                f"{cluster.chips:,} devices of one processor; at most {MOST_CPU_DEVICES}"
            )
        if cluster.chips % job.processes:
            raise BadInput(f"{cluster.chips} devices do not divide over {job.processes} processes")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cluster.chips // job.processes)
    _keep_compiled()
    if job.processes > 1 or job.distributed:
        _join(job)


def _keep_compiled() -> None:
    folder = Path(os.environ.get(CACHE) or _user_cache() / "muster" / "compiled")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a cache that cannot be kept costs time, nothing else
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _join(job: Job) -> None:
    try:
        if job.coordinator is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(
                coordinator_address=job.coordinator,
                num_processes=job.processes,
                process_id=job.process,
                initialization_timeout=120,
            )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadInput(f"the processes of this job do not find each other: {reason}") from None


def hardware_here() -> str:
    """The devices of this job as `muster plan --on` would name them.

    Raises:
        BadInput: the hardware tables do not have this kind of device.
    """
    devices = jax.devices()
    first, number = devices[0], len(devices)
    if first.platform == "cpu":
        return f"cpu:{number}"
    kind = first.device_kind
    if kind in DEVICE_KINDS:
        chips = number // 2 if kind in {"TPU v2", "TPU v3", "TPU7x"} else number
        return f"{DEVICE_KINDS[kind]}-{_accelerator_number(DEVICE_KINDS[kind], chips)}"
    for name in GPU_NAMES:
        if name in kind.lower().replace(" ", ""):
            return f"{name}:{number}"
    raise BadInput(
        f"the devices here, {number} x {kind}, are not in the hardware tables; say what they are "
        "like with --on"
    )


def _accelerator_number(chip: str, chips: int) -> int:
    """Cloud's number of an accelerator type: cores for v2 to v5p, else chips."""
    return 2 * chips if chip in {"v2", "v3", "v4", "v5p"} else chips


def start_single() -> None:
    """Prepare JAX for one process that works alone, on whatever devices it finds."""
    start(None, Job())
