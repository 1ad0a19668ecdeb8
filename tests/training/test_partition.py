"""Where every array of a training state lies: golden shardings, bytes, and what travels.

`python -m tests.training.test_partition` writes the golden files anew; read the difference.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import pytest

from muster.errors import BadInput
from muster.hardware import parse_cluster
from muster.models.registry import find_model
from muster.planner.build import make_plan
from muster.planner.plan import Plan
from muster.planner.search import Restrictions
from muster.planner.workload import make_workload
from muster.roofline.remat import Remat
from muster.sharding.mesh import Layout
from muster.sharding.weights import weight_table
from muster.training.mesh import AXES, make_mesh
from muster.training.setup import Program, make_program, model_on
from muster.training.step import Objective
from muster.units import parse_batch
from tests.training import tiny

GOLDEN = Path(__file__).parents[1] / "golden"

# name -> (model, layout)
SHARDINGS = {
    "llama-3-8b-fsdp-tensor": ("llama-3-8b", Layout(fsdp=4, tensor=2)),
    "llama-3-8b-zero-1": ("llama-3-8b", Layout(data=4, fsdp=2, shards_optimizer=True)),
    "mixtral-8x7b-experts": ("mixtral-8x7b", Layout(fsdp=2, expert=2, tensor=2)),
    "qwen3-8b-sequence": ("qwen3-8b", Layout(sequence=4, tensor=2)),
}
COLLECTIVES = {
    "fsdp": Layout(fsdp=8),
    "data-fsdp-tensor": Layout(data=2, fsdp=2, tensor=2),
    "fsdp-sequence-tensor": Layout(fsdp=2, sequence=2, tensor=2),
}


def program_of(model: str, layout: Layout) -> Program:
    architecture = find_model(model)
    workload = make_workload(architecture, parse_batch("8seq"), sequence_length=1024)
    on_mesh = model_on(architecture, layout, 1024, compute_dtype="bfloat16")
    return make_program(workload, on_mesh, tiny.optimizer(), Objective())


def specs(program: Program) -> dict[str, dict[str, str]]:
    """PartitionSpecs of parameters and of both moments, by the parameters' names."""
    found: dict[str, dict[str, str]] = {"params": {}, "moments": {}}
    for path, leaf in jax.tree_util.tree_leaves_with_path(program.state):
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        if not names:
            assert leaf.sharding.is_fully_replicated
            continue
        kind = (
            "moments" if any(getattr(key, "name", "") == "optimizer" for key in path) else "params"
        )
        spec = str(leaf.sharding.spec)
        assert found[kind].setdefault(names[-1], spec) == spec
    return found


def collectives(layout: Layout) -> dict[str, int]:
    """How many of each kind the compiled step has; those of the scanned layer count once."""
    trained = tiny.trainer(tiny.planned(tiny.architecture(), layout))
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    found = re.findall(rf" ({kinds})(?:-start)?\(", trained.step.as_text() or "")
    return dict(sorted(Counter(found).items()))


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", SHARDINGS)
def test_shardings_are_the_golden_ones(name: str) -> None:
    assert specs(program_of(*SHARDINGS[name])) == golden(name)


def test_collectives_do_not_grow() -> None:
    """Fewer are welcome: then write the golden file anew."""
    wanted = golden("collectives")
    for name, layout in COLLECTIVES.items():
        found = collectives(layout)
        for kind in found.keys() | wanted[name].keys():
            assert found.get(kind, 0) <= wanted[name].get(kind, 0), (name, kind, found)


def plan_with(model: str, **ways: int) -> Plan:
    architecture = find_model(model)
    workload = make_workload(
        architecture, parse_batch("8seq"), sequence_length=1024, param_dtype="f32"
    )
    return make_plan(
        architecture,
        parse_cluster("cpu:8"),
        workload,
        restrictions=Restrictions(fixed={"stage": 1, **ways}, remat=Remat.FULL),
    )


def bytes_on_a_device(leaves: Any) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(leaves)
        if leaf.ndim
    )


@pytest.mark.parametrize(
    ("model", "ways"),
    [
        ("llama-3-8b", {"fsdp": 8, "data": 1}),
        ("llama-3-8b", {"fsdp": 4, "tensor": 2, "data": 1}),
        ("llama-3.2-1b", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("qwen3-8b", {"fsdp": 2, "sequence": 2, "tensor": 2}),
        ("mixtral-8x7b", {"fsdp": 2, "expert": 4}),
    ],
    ids=str,
)
def test_bytes_on_a_device_are_the_plans(model: str, ways: dict[str, int]) -> None:
    """But for vectors: the plan spreads them as it does matrices, the trainer keeps them whole.

    They are a five-thousandth of the whole, and gathering them would cost more than it saves.
    """
    plan = plan_with(model, **ways)
    layout, workload = plan.choice.layout, plan.workload
    on_mesh = model_on(
        plan.architecture, layout, workload.sequence_length, compute_dtype="bfloat16"
    )
    program = make_program(workload, on_mesh, tiny.optimizer(), Objective())
    table = weight_table(plan.architecture)
    vectors = 4 * sum(weight.count for weight in table if weight.role == "vector")
    for held, planned, copies in (
        (program.state.params, plan.memory.params, 1),
        (program.state.optimizer, plan.memory.optimizer, 2),
    ):
        assert 0 <= bytes_on_a_device(held) - planned <= copies * vectors
        assert copies * vectors < 1e-3 * planned


def test_a_mesh_has_all_axes_and_the_first_devices() -> None:
    mesh = make_mesh(Layout(fsdp=2, tensor=2))
    assert mesh.axis_names == AXES
    assert dict(mesh.shape) == dict.fromkeys(AXES, 1) | {"fsdp": 2, "tensor": 2}
    assert list(mesh.devices.flat) == jax.devices()[:4]
    with pytest.raises(BadInput, match="the layout is for 16 devices and there are 8"):
        make_mesh(Layout(fsdp=16))


def write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    found: dict[str, Any] = {name: specs(program_of(*of)) for name, of in SHARDINGS.items()}
    found["collectives"] = {name: collectives(layout) for name, layout in COLLECTIVES.items()}
    for name, content in found.items():
        text = json.dumps(content, indent=1) + "\n"
        (GOLDEN / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    write()
