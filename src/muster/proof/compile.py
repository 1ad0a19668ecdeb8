"""The child process that compiles a plan's step with the TPU compiler; no TPU is needed.

    python -m muster.proof.compile REQUEST.json FOLDER PARENT

writes FOLDER/result.json and, where the compiler was content, FOLDER/program.hlo.txt: the scheduled
program of one device. The compiler kills the process that asks it for some shapes, so nothing else
may run here. `muster.proof.compiler` is what others call.
"""

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from muster.errors import BadInput, MusterError
from muster.hardware import Cluster
from muster.hardware.shapes import format_shape
from muster.planner.plan_file import PlannedRun, planned_run
from muster.training.mesh import AXES
from muster.training.optimizer import OptimizerConfig
from muster.training.setup import DTYPES, Program, make_model, make_program
from muster.training.step import Objective

MEMORY = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
    "peak": "peak_memory_in_bytes",
    "host_temporaries": "host_temp_size_in_bytes",
}
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
# The compiler has said it in both of these ways.
_OVER = (
    re.compile(
        r"\((?P<used>[\d.]+)(?P<used_unit>[KMGT]?)\) exceeds available (?P<space>\w+) "
        r"\((?P<usable>[\d.]+)(?P<usable_unit>[KMGT]?)\)"
    ),
    re.compile(
        r"[Uu]sed (?P<used>[\d.]+)(?P<used_unit>[KMGT]?) of (?P<usable>[\d.]+)"
        r"(?P<usable_unit>[KMGT]?) (?P<space>hbm|vmem|smem)"
    ),
)
_MOST_DETAIL = 20_000


def topology_devices(cluster: Cluster) -> Sequence[jax.Device]:
    """The devices of a cluster that is not there, as the compiler sees them.

    Raises:
        BadInput: the TPU compiler does not know the chip.
    """
    chip = cluster.chip
    if chip.compiler is None:
        raise BadInput(f"the TPU compiler has no {chip.id}; choose a TPU")
    arguments: dict[str, Any] = {"chip_config_name": chip.compiler.chip_config}
    if cluster.slices > 1:
        arguments["num_slices"] = cluster.slices
    devices: Sequence[jax.Device] = topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{chip.compiler.name}:{format_shape(cluster.slice.shape)}",
        **arguments,
    ).devices
    return devices


def program_of(planned: PlannedRun, devices: Sequence[jax.Device]) -> Program:
    """The training step of a plan, laid out on these devices, as `muster train` runs it.

    The learning rate is an argument of the step, so the length of the run does not matter.
    """
    workload = planned.workload
    model = make_model(planned, devices)
    moments = DTYPES.get(workload.optimizer_dtype, workload.optimizer_dtype)
    optimizer = OptimizerConfig(total_steps=1, moments_dtype=moments)
    objective = Objective(router_loss=model.numerics.router_loss)
    return make_program(workload, model, optimizer, objective)


def compile_step(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile what a request asks for; the program goes to `folder`, the findings come back."""
    planned = planned_run(request["plan"], where="the plan")
    if request["layers"] is not None:
        layers = planned.architecture.layers[: request["layers"]]
        planned = replace(planned, architecture=replace(planned.architecture, layers=layers))
    begun = time.perf_counter()
    say_stage(folder, "tracing the step")
    program = program_of(planned, topology_devices(planned.cluster))
    lowered = program.lowered()
    traced = time.perf_counter()
    say_stage(folder, "compiling the step")
    compiled = lowered.compile(compiler_options=dict(request["options"]) or None)
    done = time.perf_counter()
    say_stage(folder, "writing the program")
    (folder / "program.hlo.txt").write_text(compiled.as_text() or "", "utf-8")
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    place = program.model.partition
    return {
        "status": "compiled",
        "memory": {name: int(getattr(memory, key, 0)) for name, key in MEMORY.items()},
        "cost": {key: float(cost[key]) for key in ("flops", "bytes accessed") if key in cost},
        "mesh": {axis: place.ways(axis) for axis in AXES},
        "coordinates": [_place(device) for device in place.mesh.devices.flat],
        "trace_seconds": traced - begun,
        "compile_seconds": done - traced,
    }


def say_stage(folder: Path, stage: str) -> None:
    """Tell the process that waits what is being done."""
    (folder / "stage").write_text(stage, "utf-8")


def _place(device: jax.Device) -> list[int]:
    """x, y, z, core and slice of a device."""
    coords: Any = getattr(device, "coords", (0, 0, 0))
    core = getattr(device, "core_on_chip", 0) or 0
    return [*coords, core, getattr(device, "slice_index", 0) or 0]


def refusal(error: Exception) -> dict[str, Any]:
    """What a compiler's error says, as a result."""
    text = str(error)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    said = {"message": first.strip(), "detail": text[:_MOST_DETAIL]}
    over = next((found for way in _OVER if (found := way.search(text))), None)
    if over is None:
        return {"status": "refused", **said}
    return {
        "status": "too_large",
        **said,
        "space": over["space"].lower(),
        "needed": round(float(over["used"]) * _UNITS[over["used_unit"]]),
        "usable": round(float(over["usable"]) * _UNITS[over["usable_unit"]]),
    }


def end_with_parent(parent: int) -> None:
    """End this process when the one that asked for it is gone: nobody waits for its result.

    Args:
        parent: its process id, from itself: it may be gone before this process could ask.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Compile one request; whatever it comes to is written as a result."""
    request_path, folder, parent = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    end_with_parent(parent)
    request = json.loads(request_path.read_text("utf-8"))
    try:
        result = compile_step(request, folder)
    except MusterError as error:
        result = {"status": "bad_input", "message": str(error)}
    except (OSError, MemoryError, ImportError) as error:  # this machine's fault: no answer to keep
        said = str(error) or type(error).__name__
        result = {"status": "died", "message": f"the compiler process failed: {said}"}
    except Exception as error:  # the compiler's errors have no class of their own
        result = refusal(error)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result["peak_rss_bytes"] = peak * (1 if sys.platform == "darwin" else 1024)
    (folder / "result.json").write_text(json.dumps(result), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
