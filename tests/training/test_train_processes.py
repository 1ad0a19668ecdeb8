"""Runs as processes: killed in the middle of a save, preempted, several at once."""

import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.training.checkpoints import Checkpoints
from tests.training.commands import TIMEOUT, Workshop
from tests.training.jobs import logged, write_corpus

pytestmark = pytest.mark.slow

STEPS = ("--steps", 16, "--save-every", 4)
# More words than the corpus has, so that a save takes long enough to be met.
LARGE = {"vocab_size": 16384}
FLOAT32 = 3e-6


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("shop")
    write_corpus(folder / "texts")
    return Workshop(folder)


@pytest.fixture(scope="module")
def uninterrupted(shop: Workshop) -> Path:
    run = shop.folder / "whole"
    shop.run(*shop.train(run, *STEPS, model=shop.config(**LARGE))).well()
    return run


def wait_for(wanted: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not wanted():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def steps_done(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("save", [8, 12])
def test_killed_in_the_middle_of_a_save_and_resumed(
    shop: Workshop, uninterrupted: Path, save: int
) -> None:
    run = shop.folder / f"killed-{save}"
    arguments = shop.train(run, *STEPS, model=shop.config(**LARGE))
    process = shop.start(arguments)
    unfinished = run / "checkpoints" / f"{save}.orbax-checkpoint-tmp"
    wait_for(unfinished.exists, process)
    process.kill()
    assert shop.end(process).status == -signal.SIGKILL
    assert unfinished.exists(), "the save was over before the signal came"
    resumed = shop.run(*arguments).well()
    assert f"resumed {run} after step {save - 4}" in resumed.err + resumed.out
    assert "is a save that was cut short" in resumed.err + resumed.out
    assert logged(run) == logged(uninterrupted)


def test_sigterm_saves_and_ends_with_status_0(shop: Workshop, uninterrupted: Path) -> None:
    run = shop.folder / "preempted"
    arguments = shop.train(run, *STEPS, model=shop.config(**LARGE))
    process = shop.start(arguments)
    wait_for(lambda: steps_done(run) >= 5, process)
    process.terminate()
    stopped = shop.end(process).well()
    found = re.search(r"stopped by SIGTERM at step (\d+)", stopped.out + stopped.err)
    assert found, stopped.err
    assert 5 <= int(found[1]) < 16
    with Checkpoints(run / "checkpoints") as saved:
        assert saved.latest() == int(found[1])
    shop.run(*arguments).well()
    assert logged(run) == logged(uninterrupted)


def test_two_processes_train_the_curve_of_one(shop: Workshop, uninterrupted: Path) -> None:
    run = shop.folder / "two"
    shop.run(*shop.train(run, *STEPS, "--processes", 2, model=shop.config(**LARGE))).well()
    assert logged(run) == pytest.approx(logged(uninterrupted), rel=FLOAT32)


def test_a_run_goes_on_with_other_processes(shop: Workshop, uninterrupted: Path) -> None:
    """Two processes, preempted; then one."""
    run = shop.folder / "fewer"
    arguments = shop.train(run, *STEPS, model=shop.config(**LARGE))
    process = shop.start([*arguments, "--processes", "2"])
    wait_for(lambda: steps_done(run) >= 5, process)
    process.terminate()
    stopped = shop.end(process).well()
    assert "stopped by SIGTERM" in stopped.out + stopped.err
    resumed = shop.run(*arguments).well()
    assert "resumed" in resumed.out + resumed.err
    assert logged(run) == pytest.approx(logged(uninterrupted), rel=FLOAT32)


def children_of(process: subprocess.Popen[str]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_the_job(shop: Workshop, victim: int) -> None:
    run = shop.folder / f"dead-{victim}"
    process = shop.start(shop.train(run, "--steps", 100_000, "--processes", 2))
    wait_for(lambda: steps_done(run) >= 3, process)
    children = children_of(process)
    assert len(children) == 2
    subprocess.run(["kill", "-9", str(children[victim])], check=True)
    begun = time.monotonic()
    ended = shop.end(process)
    assert time.monotonic() - begun < 60
    assert ended.status == 1
    assert f"muster: process {victim} of 2 ended with signal SIGKILL" in ended.err
    assert "the same command again goes on from the newest checkpoint" in ended.err
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_bad_input_is_said_once_by_several_processes(shop: Workshop) -> None:
    arguments = shop.train(shop.folder / "none", "--steps", 2, "--processes", 2)
    where = arguments.index("--data") + 1
    arguments[where] = str(shop.folder / "nowhere")
    ended = shop.run(*arguments)
    assert ended.status == 2
    assert ended.err.count("muster: ") == 1, ended.err
    assert "Traceback" not in ended.err
    assert not (shop.folder / "none").exists()
