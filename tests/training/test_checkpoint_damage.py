"""Checkpoints that are damaged, half-written or have no room, and what is made of them."""

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.errors import BadInput
from muster.training.checkpoints import Checkpoints, SaveFailed, arrays, folder
from muster.training.checkpoints.quiet import silence_orbax
from muster.training.params import Params

META = {"config": {"vocab_size": 64}}
NAMES = ("embedding", "layers.mlp.gate")


def params_of(seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed), len(NAMES))
    return {name: jax.random.normal(key, (64, 48)) for name, key in zip(NAMES, keys, strict=True)}


def abstract() -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((64, 48), jnp.float32) for name in NAMES}


def assert_is(params: Params, seed: int) -> None:
    for name, expected in params_of(seed).items():
        assert np.asarray(params[name]).tobytes() == np.asarray(expected).tobytes()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpoints(tmp_path / "checkpoints") as saved:
        for step in (1, 2):
            positions = np.array([step, 0], np.int64)
            saved.save(step, params=params_of(step), data=positions, meta=META)
    return tmp_path / "checkpoints"


def largest(step: Path) -> Path:
    files = [path for path in (step / "params").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def truncate(step: Path) -> str:
    file = largest(step)
    os.truncate(file, file.stat().st_size // 2)
    return r"params/ocdbt.process_0/d/\w+ has \d+ bytes instead of \d+$"


def empty(step: Path) -> str:
    os.truncate(largest(step), 0)
    return "has 0 bytes instead of"


def delete(step: Path) -> str:
    largest(step).unlink()
    return r"params/ocdbt.process_0/d/\w+ is missing$"


def flip_one_bit(step: Path) -> str:
    file = largest(step)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return "has other content than was written$"


def lose_the_marker(step: Path) -> str:
    (step / "commit_success.txt").unlink()
    return "half-written, it has no commit_success.txt$"


def lose_the_record(step: Path) -> str:
    (step / "manifest.json").unlink()
    return "half-written, it has no manifest.json$"


def garble_the_record(step: Path) -> str:
    (step / "manifest.json").write_bytes(b"\x00\xff{]")
    return r"manifest.json cannot be read \(UnicodeDecodeError\)$"


def shorten_the_record(step: Path) -> str:
    (step / "manifest.json").write_text("[]")
    return r"manifest.json cannot be read \(TypeError\)$"


def garble_metadata(step: Path) -> str:
    file = step / "params" / "_METADATA"
    file.write_bytes(b"x" * file.stat().st_size)
    return "params/_METADATA has other content"


def lose_positions(step: Path) -> str:
    (step / "data" / "metadata").unlink()
    return "data/metadata is missing$"


def leave_only_the_folder(step: Path) -> str:
    for path in sorted(step.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return "half-written"


DAMAGES = [
    truncate,
    empty,
    delete,
    flip_one_bit,
    lose_the_marker,
    lose_the_record,
    garble_the_record,
    shorten_the_record,
    garble_metadata,
    lose_positions,
    leave_only_the_folder,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_one_before_a_damaged_checkpoint_is_used_and_the_run_goes_on(
    run: Path, damage: Callable[[Path], str]
) -> None:
    why = damage(run / "2")
    with Checkpoints(run) as saved:
        restored = saved.restore(abstract())
        assert restored.step == 1
        assert restored.data is not None
        assert restored.data.tolist() == [1, 0]
        assert_is(restored.params, 1)
        (line,) = restored.skipped
        assert line.startswith(f"checkpoint {run / '2'} is damaged: ")
        assert re.search(why, line)
        with pytest.raises(BadInput, match="is damaged: "):
            saved.restore(abstract(), step=2)
        saved.save(2, params=params_of(9), meta=META)
    again = Checkpoints(run).restore(abstract())
    assert (again.step, again.skipped) == (2, ())
    assert_is(again.params, 9)


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_none_is_whole_it_is_said(run: Path, damage: Callable[[Path], str]) -> None:
    for step in ("1", "2"):
        damage(run / step)
    with pytest.raises(BadInput) as caught:
        Checkpoints(run).restore(abstract())
    text = str(caught.value)
    assert text.startswith(f"no checkpoint in {run} can be used; checkpoint {run / '2'} is damaged")
    assert f"checkpoint {run / '1'} is damaged" in text
    assert "\n" not in text


@pytest.mark.parametrize("item", ["params", "meta"])
def test_a_damaged_record_is_passed_over_as_damaged_weights_are(run: Path, item: str) -> None:
    with Checkpoints(run) as saved:
        saved.save(3, params=params_of(3), meta={"third": True})
    for path in (run / "3" / item).rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    step, (line,) = Checkpoints(run).newest_whole()
    assert step == 2
    assert line.startswith(f"checkpoint {run / '3'} is damaged: {item}/")
    assert Checkpoints(run).meta() == (META if item == "meta" else {"third": True})
    assert Checkpoints(run).restore(abstract()).damaged == (line,)
    for read in (Checkpoints(run).newest_whole, Checkpoints(run).meta):
        if (read.__name__, item) != ("meta", "params"):
            with pytest.raises(BadInput, match="3 is damaged: "):
                read(3)


def test_damage_to_what_is_not_asked_for_is_no_damage(tmp_path: Path) -> None:
    params = params_of(1)
    state = {"mu": {name: array * 2 for name, array in params.items()}}
    with Checkpoints(tmp_path) as saved:
        saved.save(1, params=params, optimizer=state, meta=META)
    for path in (tmp_path / "1" / "optimizer").rglob("*"):
        if path.is_file():
            os.truncate(path, 0)
    assert_is(Checkpoints(tmp_path).restore(abstract()).params, 1)
    with pytest.raises(BadInput, match=r"no checkpoint .* can be used.* optimizer/"):
        Checkpoints(tmp_path).restore(abstract(), {"mu": abstract()})


@pytest.mark.parametrize("damage", [truncate, empty, delete])
def test_reading_notices_by_itself_what_the_record_would_have_told(
    run: Path, damage: Callable[[Path], str]
) -> None:
    silence_orbax()
    damage(run / "2")
    item = run / "2" / "params"
    with pytest.raises(folder.Damaged, match="params cannot be read: "):
        arrays.read_arrays(item, arrays.stored_arrays(item), abstract())
    gc.collect()  # frees the reads of other shards that orbax abandoned: they must be quiet


def test_without_checksums_sizes_are_still_compared(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, checksums=False) as saved:
        for step in (1, 2):
            saved.save(step, params=params_of(step), meta=META)
    truncate(tmp_path / "2")
    restored = Checkpoints(tmp_path).restore(abstract())
    assert restored.step == 1
    assert "bytes instead of" in restored.skipped[0]


def test_a_save_that_was_cut_short_is_named_and_removed_by_the_next(run: Path) -> None:
    left = run / "3.orbax-checkpoint-tmp"
    (left / "params").mkdir(parents=True)
    (left / "params" / "x").write_text("half")
    with Checkpoints(run) as saved:
        restored = saved.restore(abstract())
        assert restored.step == 2
        assert restored.skipped == (
            f"{left} is a save that was cut short; the next save removes it",
        )
        saved.save(3, params=params_of(3), meta=META)
    assert sorted(path.name for path in run.iterdir()) == ["1", "2", "3"]


def test_other_things_in_the_folder_are_no_checkpoints(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "-5").mkdir()
    with Checkpoints(run) as saved:
        assert saved.steps() == [1, 2]
        assert saved.restore(abstract()).step == 2
        saved.save(3, params=params_of(3), meta=META)
    assert (run / "notes.txt").read_text() == "mine"


def test_a_format_of_the_future_is_not_guessed_at(run: Path) -> None:
    record = run / "2" / "manifest.json"
    record.write_text(record.read_text().replace('"format": 1', '"format": 2'))
    assert "has format 2, known is 1" in Checkpoints(run).restore(abstract()).skipped[0]


def test_a_folder_with_room_is_made_and_left_empty(tmp_path: Path) -> None:
    Checkpoints(tmp_path / "a" / "checkpoints").check_room(10**6)
    assert list((tmp_path / "a" / "checkpoints").iterdir()) == []


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(BadInput, match=f"^cannot save checkpoints in {path}: .*not a folder$"):
            Checkpoints(path).check_room(1)


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, os.strerror(30))

    # Root may write anywhere, so the file system's answer is played.
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(BadInput, match=r"^cannot save checkpoints in .*: Read-only file system$"):
        Checkpoints(tmp_path).check_room(1)


def test_a_disk_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"two take 2.00 EB, .* are free; name a folder on a larger"):
        Checkpoints(tmp_path).check_room(10**18)
    with pytest.raises(BadInput, match="no room for checkpoints"):
        Checkpoints(tmp_path / "a" / "b").check_room(10**18)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3://bucket/run"])
def test_an_address_is_no_folder(address: str) -> None:
    with pytest.raises(BadInput, match="mount the bucket"):
        Checkpoints(Path(address))


def test_a_backslash_would_lead_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"back\\slash.* name a folder without one$"):
        Checkpoints(tmp_path / "back\\slash")


def test_steps_of_which_none_is_usable_are_still_found(run: Path, tmp_path: Path) -> None:
    assert not Checkpoints(tmp_path / "new").found()
    with Checkpoints(run) as saved:
        assert saved.found()
        for step in (1, 2):
            lose_the_marker(run / str(step))
        assert saved.latest() is None
        assert saved.found()


def test_a_failed_write_is_one_line_loses_nothing_and_the_next_save_works(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    with Checkpoints(run) as saved:
        saved.restore(abstract())
        with monkeypatch.context() as patch:
            patch.setattr(folder, "write_manifest", full)
            saved.save(3, params=params_of(3), meta=META)
            with pytest.raises(SaveFailed) as caught:
                saved.wait()
        assert re.fullmatch(
            rf"could not save step 3 in {run}: No space left on device"
            r" \(it takes up to 24.6 kB, [\d.]+ .B are free\); step 2 is kept",
            str(caught.value),
        )
        assert saved.steps() == [1, 2]
        assert_is(Checkpoints(run).restore(abstract()).params, 2)
        saved.save(3, params=params_of(3), meta=META)
    assert_is(Checkpoints(run).restore(abstract()).params, 3)
    assert sorted(path.name for path in run.iterdir()) == ["1", "2", "3"]
    assert capfd.readouterr().err == ""
