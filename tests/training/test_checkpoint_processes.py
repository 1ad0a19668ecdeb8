"""Checkpoints across processes: two at once, two to one and back, killed while saving, memory.

Run as a program, this file is one such process; see `main`.
"""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muster.errors import BadInput
from muster.training.checkpoints import Checkpoints, SaveFailed, bytes_of
from muster.training.params import Params

MIB = 2**20
ROWS = 32
NAMES = ("embedding", "layers.mlp.gate", "layers.norm_0")


def start(*args: object, devices: int) -> subprocess.Popen[str]:
    """One process of this file with some CPU devices; its output is its answer."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, __file__, *[str(arg) for arg in args]]
    return subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answers(*processes: subprocess.Popen[str]) -> list[Any]:
    """What each process printed as JSON, once all have ended well."""
    ended = [process.communicate(timeout=240) for process in processes]
    for process, (out, err) in zip(processes, ended, strict=True):
        assert process.returncode == 0, out + err
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def job(task: str, folder: Path) -> list[Any]:
    """The answers of two processes of four devices each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    return answers(*[start(task, folder, port, index, devices=4) for index in range(2)])


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    job("save", folder)
    return folder


RIGHT = {"step": 2, "wrong": [], "data": [2, 7], "skipped": [], "devices": 8}


def test_two_processes_restore_what_two_saved(saved_by_two: Path) -> None:
    assert job("restore", saved_by_two) == [RIGHT, RIGHT]


def test_one_process_restores_what_two_saved(saved_by_two: Path) -> None:
    assert restore(saved_by_two) == RIGHT


def test_two_processes_restore_what_one_saved(tmp_path: Path) -> None:
    save(tmp_path)
    assert job("restore", tmp_path) == [RIGHT, RIGHT]


def test_two_processes_agree_on_what_is_damaged_and_on_another_model(
    saved_by_two: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved_by_two, tmp_path / "copy"))
    files = sorted(path for path in (folder / "2" / "params").rglob("*") if path.is_file())
    file = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)  # only the process that has this file in its share can notice
    first, second = job("judge", folder)
    assert first == second
    assert (first["step"], first["wrong"]) == (1, [])
    (line,) = first["skipped"]
    assert re.search(r"checkpoint .*/2 is damaged: params/.* has other content", line)
    assert "layers.norm_0 is float32[32, 16] there and float32[32, 8] here" in first["error"]


def test_killed_while_saving_the_step_before_is_found(tmp_path: Path) -> None:
    process = start("save-large", tmp_path, devices=8)
    unfinished = tmp_path / "2.orbax-checkpoint-tmp"
    deadline = time.monotonic() + 120
    while bytes_under(unfinished) < 2 * MIB:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert unfinished.exists(), "the save was over before the signal came"
    assert not (tmp_path / "2").exists()
    expected = large(1)
    with Checkpoints(tmp_path) as saved:
        restored = saved.restore(abstract(expected))
        assert restored.step == 1
        assert all(same_shards(restored.params[name], expected[name]) for name in expected)
        assert restored.skipped == (
            f"{unfinished} is a save that was cut short; the next save removes it",
        )
        saved.save(2, params=expected, meta={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def bytes_under(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:  # not there yet, or renamed while we looked
        return 0


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    expected = large(1)
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=expected, meta={})
        saved.wait()
        usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        # A limit on the size of a file stands for a disk that is full.
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, most))
        try:
            with pytest.raises(SaveFailed) as caught:
                _save_and_wait(saved, 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))
        assert re.fullmatch(
            rf"could not save step 2 in {tmp_path}: File too large \(it takes up to 268 MB,"
            r" [\d.]+ .B are free\); step 1 is kept",
            str(caught.value),
        )
        restored = Checkpoints(tmp_path).restore(abstract(expected))
        assert restored.step == 1
        assert all(same_shards(restored.params[name], expected[name]) for name in expected)
        saved.save(3, params=expected, meta={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


def _save_and_wait(saved: Checkpoints, step: int) -> None:
    saved.save(step, params=large(step), meta={})
    saved.wait()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory as Linux tells it")
@pytest.mark.parametrize("writers", [1, 8])
def test_restoring_takes_little_more_memory_than_the_arrays(tmp_path: Path, writers: int) -> None:
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=large(1, devices=writers, arrays=6), meta={})
    (answer,) = answers(start("measure", tmp_path, devices=8))
    assert answer["arrays"] == 768 * MIB
    assert answer["grown"] > 0.9 * answer["arrays"], answer
    # A second copy would make it 2; what is in flight, and memory that malloc keeps, is less.
    assert answer["grown"] < 1.7 * answer["arrays"], answer


# What the processes do.


def main(task: str, folder: str, port: str = "", index: str = "") -> None:
    """Do one task, as one of two processes where a port is given, and print the answer."""
    if port:
        jax.distributed.initialize(f"localhost:{port}", 2, int(index))
    sys.stdout.write(json.dumps(TASKS[task](Path(folder))) + "\n")


def small(step: int, *, turned: bool = False) -> Params:
    """Arrays over all devices of the job, from values that every process knows."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("a", "b"))
    specs = [P("b"), P(), P("a", "b")] if turned else [P("a", "b"), P("b"), P(None, "a")]
    params: Params = {}
    for i, (name, spec) in enumerate(zip(NAMES, specs, strict=True)):
        values = np.random.default_rng((step, i)).standard_normal((ROWS, 16))
        values = values.astype(jnp.bfloat16 if i == 1 else np.float32)
        params[name] = jax.make_array_from_callback(
            values.shape, NamedSharding(mesh, spec), values.__getitem__
        )
    return params


def large(step: int, *, devices: int = 8, arrays: int = 2) -> Params:
    """Arrays of 128 MiB, over all or fewer devices."""
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("a",))
    sharding = NamedSharding(mesh, P(None, "a"))

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (8192, 4096))

    keys = jax.random.split(jax.random.key(step), arrays)
    params: Params = {}
    for i, key in enumerate(keys):
        params[str(i)] = jax.device_put(jax.jit(draw)(key), sharding)
    return params


def abstract(params: Params) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for name, array in params.items()
    }


def same_shards(array: jax.Array, expected: jax.Array) -> bool:
    return bool(array.sharding == expected.sharding) and all(
        np.asarray(one.data).tobytes() == np.asarray(other.data).tobytes()
        for one, other in zip(array.addressable_shards, expected.addressable_shards, strict=True)
    )


def save(folder: Path) -> dict[str, Any]:
    with Checkpoints(folder) as saved:
        saved.check_room(10**6)
        for step in (1, 2):
            params = small(step)
            data = np.array([step, 7], np.int64)
            saved.save(step, params=params, optimizer={"mu": params}, data=data, meta={})
    return {}


def restore(folder: Path) -> dict[str, Any]:
    wanted = abstract(small(0, turned=True))
    restored = Checkpoints(folder).restore(wanted, {"mu": wanted})
    expected = small(restored.step, turned=True)
    assert restored.data is not None
    return {
        "step": restored.step,
        "wrong": [
            name
            for name in NAMES
            if not same_shards(restored.params[name], expected[name])
            or not same_shards(restored.optimizer["mu"][name], expected[name])
        ],
        "data": restored.data.tolist(),
        "skipped": list(restored.skipped),
        "devices": jax.device_count(),
    }


def judge(folder: Path) -> dict[str, Any]:
    """What is found where the newest checkpoint is damaged, and where the model is another."""
    found = restore(folder)
    wanted = abstract(small(0))
    wanted[NAMES[2]] = jax.ShapeDtypeStruct((ROWS, 8), jnp.float32)
    try:
        Checkpoints(folder).restore(wanted)
    except BadInput as error:
        return found | {"error": str(error)}
    return found | {"error": None}


def save_large(folder: Path) -> dict[str, Any]:
    with Checkpoints(folder) as saved:
        for step in (1, 2):
            saved.save(step, params=large(step), meta={})
    return {}


def measure(folder: Path) -> dict[str, Any]:
    """How far the process's peak of resident memory grows while it restores."""
    saved = Checkpoints(folder)
    sharding = NamedSharding(Mesh(np.asarray(jax.devices()), ("a",)), P("a"))
    wanted = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for name, leaf in saved.shapes().items()  # the imports are not what is measured
    }
    before = resident_bytes("VmRSS")
    restored = saved.restore(wanted)
    jax.block_until_ready(restored.params)
    grown = resident_bytes("VmHWM") - before
    return {"arrays": bytes_of(restored.params), "grown": grown}


def resident_bytes(what: str) -> int:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM).

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


TASKS = {
    "save": save,
    "restore": restore,
    "judge": judge,
    "save-large": save_large,
    "measure": measure,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
