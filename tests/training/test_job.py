"""Whole runs: resumed, stopped, damaged, refused."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from muster.errors import AnswerIsNo, BadInput
from muster.hardware import parse_cluster
from muster.sharding.mesh import Layout
from muster.training import loop
from muster.training.batch import Batch
from muster.training.checkpoints import Checkpoints
from muster.training.feed import Feed
from muster.training.job import check_devices, only_run, run_job
from tests.training import tiny
from tests.training.jobs import STEPS, VOCAB, Watching, job, logged, programs_kept, write_corpus

LAYOUT = Layout(fsdp=2, sequence=2, tensor=2)
OTHER = Layout(data=4, tensor=2)


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with programs_kept(tmp_path_factory.mktemp("compiled")):
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    outcome = run_job(job(corpus, folder, LAYOUT), Watching())
    assert (outcome.step, outcome.stopped_by) == (STEPS, None)
    return folder


@pytest.fixture
def stopped(corpus: Path, tmp_path: Path) -> Path:
    """A run that was sent SIGTERM as its third step was reported."""
    folder = tmp_path / "run"
    outcome = run_job(job(corpus, folder, LAYOUT), Watching(signal_at=3))
    assert outcome.stopped_by == "SIGTERM"
    assert 3 <= outcome.step < STEPS
    with Checkpoints(folder / "checkpoints") as saved:
        assert saved.latest() == outcome.step
    return folder


def test_the_loss_falls(uninterrupted: Path) -> None:
    losses = logged(uninterrupted)
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1] - 0.5


def test_a_stopped_run_goes_on_bit_for_bit(
    stopped: Path, corpus: Path, uninterrupted: Path
) -> None:
    seen = Watching()
    outcome = run_job(job(corpus, stopped, LAYOUT), seen)
    assert outcome.step == STEPS
    assert seen.notes[0].startswith(f"resumed {stopped} after step ")
    assert logged(stopped) == logged(uninterrupted)


def test_a_run_goes_on_on_another_mesh(stopped: Path, corpus: Path, uninterrupted: Path) -> None:
    run_job(job(corpus, stopped, OTHER), Watching())
    found, wanted = logged(stopped), logged(uninterrupted)
    assert found == pytest.approx(wanted, rel=3e-6)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_used(
    stopped: Path, corpus: Path, uninterrupted: Path
) -> None:
    newest = max(int(path.name) for path in (stopped / "checkpoints").iterdir())
    parts = stopped / "checkpoints" / str(newest) / "params"
    file = max((f for f in parts.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    seen = Watching()
    run_job(job(corpus, stopped, LAYOUT), seen)
    assert f"checkpoint {stopped / 'checkpoints' / str(newest)} is damaged" in seen.notes[0]
    assert "resumed" in seen.notes[-1]
    assert seen.notes[-1].endswith("step 2")
    assert logged(stopped) == logged(uninterrupted)


def test_a_run_that_is_done_says_so(uninterrupted: Path, corpus: Path) -> None:
    seen = Watching()
    outcome = run_job(job(corpus, uninterrupted, LAYOUT), seen)
    assert (outcome.step, outcome.last) == (STEPS, None)
    assert seen.notes[-1] == (
        f"{uninterrupted} has 6 steps already; train further with a larger --steps"
    )


def test_other_batches_and_other_models_are_refused(uninterrupted: Path, corpus: Path) -> None:
    with pytest.raises(BadInput, match="other batches: seed was 0 and now is 1; keep that, or"):
        run_job(job(corpus, uninterrupted, LAYOUT, data_seed=1), Watching())
    wider = tiny.planned(tiny.architecture(vocab_size=VOCAB, intermediate_size=64), LAYOUT)
    with pytest.raises(BadInput, match=r"layers\.mlp\.\w+ is float32\[2, .* there and .* here"):
        run_job(replace(job(corpus, uninterrupted, LAYOUT), planned=wider), Watching())


def test_weights_of_the_same_shapes_and_another_arithmetic_are_refused(
    uninterrupted: Path, corpus: Path, tmp_path: Path
) -> None:
    model = tiny.architecture(vocab_size=VOCAB, rms_norm_eps=1e-3)
    other = tiny.planned(model, LAYOUT)
    for folder, changes in ((uninterrupted, {}), (tmp_path / "run", {"initial": uninterrupted})):
        run = replace(job(corpus, folder, LAYOUT, **changes), planned=other)
        with pytest.raises(BadInput, match=r"another model: its norm eps was 1e-05 and now is"):
            run_job(run, Watching())
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_which_none_is_usable_do_not_begin_anew(stopped: Path, corpus: Path) -> None:
    before = logged(stopped)
    for step in (stopped / "checkpoints").iterdir():
        (step / "manifest.json").write_text("x", "utf-8")
    with pytest.raises(BadInput, match=r"no checkpoint in .* can be used"):
        run_job(job(corpus, stopped, LAYOUT), Watching())
    assert logged(stopped) == before


def test_one_run_a_folder(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with only_run(folder), pytest.raises(BadInput, match=f"another run is training in {folder}"):
        run_job(job(corpus, folder, LAYOUT), Watching())
    with only_run(folder):
        pass  # held by nobody any more


def test_a_second_sigterm_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    class Impatient(Watching):
        def saving(self, step: int) -> None:
            super().saving(step)
            signal.raise_signal(signal.SIGTERM)

    folder = tmp_path / "run"
    outcome = run_job(job(corpus, folder, LAYOUT, save_every=100), Impatient(signal_at=3))
    with Checkpoints(folder / "checkpoints") as saved:
        assert saved.latest() == outcome.step


def test_a_batch_that_cannot_be_read_costs_no_step_before_it(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter(range(100))
    whole = Feed.__next__

    def broken(feed: Feed) -> Batch:
        if next(taken) == 3:
            raise BadInput("texts/07.txt is gone")
        return whole(feed)

    monkeypatch.setattr(Feed, "__next__", broken)
    folder = tmp_path / "run"
    with pytest.raises(BadInput, match=r"07\.txt is gone"):
        run_job(job(corpus, folder, LAYOUT, save_every=100), Watching())
    with Checkpoints(folder / "checkpoints") as saved:
        assert saved.latest() == 3


def test_starts_from_the_weights_of_another_run(
    uninterrupted: Path, corpus: Path, tmp_path: Path
) -> None:
    seen = Watching()
    run_job(job(corpus, tmp_path / "run", LAYOUT, initial=uninterrupted), seen)
    assert seen.notes[-1] == f"starts from the weights of {uninterrupted}, step 6"
    assert seen.losses[1] < logged(uninterrupted)[1] - 0.5


@pytest.fixture(scope="module")
def spoilt(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of which one is no number."""
    folder = tmp_path_factory.mktemp("spoilt")
    with Checkpoints(uninterrupted / "checkpoints", vocab_size=VOCAB) as saved:
        params = saved.restore(saved.shapes()).params
    head = np.array(params["head"])
    head[0, 0] = np.nan
    with Checkpoints(folder / "checkpoints", vocab_size=VOCAB) as to:
        to.save(0, params=params | {"head": jax.numpy.asarray(head)}, meta={})
    return folder


def test_a_loss_that_is_not_finite_stops_the_run(
    spoilt: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(AnswerIsNo, match=r"^step 1: the loss is not finite; nothing was updated"):
        run_job(job(corpus, tmp_path / "run", LAYOUT, initial=spoilt), Watching())
    assert logged(tmp_path / "run")[1] is None
    assert not list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))


def test_skip_passes_over_steps_that_are_not_finite_but_not_for_ever(
    spoilt: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Watching()
    going_on = job(corpus, tmp_path / "run", LAYOUT, initial=spoilt, on_nan="skip")
    assert run_job(going_on, seen).step == STEPS
    assert seen.notes[1:] == [
        f"step {step}: the loss is not finite; nothing was updated" for step in range(1, STEPS + 1)
    ]
    monkeypatch.setattr(loop, "MOST_SKIPPED_IN_A_ROW", 3)
    again = replace(going_on, folder=tmp_path / "other")
    with pytest.raises(AnswerIsNo, match=r"^step 3: the loss is not finite for the 3th time in a"):
        run_job(again, Watching())


def test_a_plan_for_other_devices_says_how_many_there_are() -> None:
    plan = tiny.planned(tiny.architecture(), Layout(data=8), chips=8)
    check_devices(plan)
    more = replace(plan, layout=Layout(data=16), cluster=parse_cluster("cpu:16"))
    offered = "16 .*cpu.* this job has 8 cpu devices; `muster train tiny --on cpu:8 ...` plans for"
    with pytest.raises(BadInput, match=offered):
        check_devices(more)
    tpus = replace(plan, cluster=parse_cluster("v5e-8"))
    with pytest.raises(BadInput, match=r"8 .*v5e.* and this job has 8 cpu devices"):
        check_devices(tpus)
