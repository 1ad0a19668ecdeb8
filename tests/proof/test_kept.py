"""The folder of kept compilations: whole entries, damaged ones, and the bound."""

import json
import os
from pathlib import Path

import pytest

from muster.proof import kept


def put(folder: Path, key: str, *, size: int = 100, used: float = 0.0) -> Path:
    place = kept.entry(folder, key)
    place.mkdir(parents=True)
    (place / kept.PROGRAM).write_text("x" * size)
    kept.written({"status": "compiled"}, place)
    os.utime(place / kept.RESULT, (used, used))
    return place


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    places = {key: put(tmp_path, key, used=when) for key, when in (("aa", 3), ("ab", 1), ("bb", 2))}
    each = 100 + (places["aa"] / kept.RESULT).stat().st_size
    kept.make_room(tmp_path, most_bytes=2 * each)
    assert {key for key, place in places.items() if place.exists()} == {"aa", "bb"}
    kept.mark_used(places["bb"])
    kept.make_room(tmp_path, most_bytes=each)
    assert {key for key, place in places.items() if place.exists()} == {"bb"}


def test_what_was_just_made_stays_whatever_it_takes(tmp_path: Path) -> None:
    large, small = put(tmp_path, "aa", size=10_000, used=1), put(tmp_path, "bb", used=2)
    kept.make_room(tmp_path, most_bytes=1000, spare=large)
    assert large.exists()
    assert small.exists()
    kept.make_room(tmp_path, most_bytes=1000)
    assert not large.exists()


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "aa" / "new-old", tmp_path / "aa" / "new-now"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (1, 1))
    kept.make_room(tmp_path)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"status": "compiled"}'])
def test_a_damaged_entry_is_none(tmp_path: Path, content: str) -> None:
    place = tmp_path / "aa"
    place.mkdir()
    (place / kept.RESULT).write_text(content)
    (place / kept.PROGRAM).write_text("")
    assert kept.read_result(place) is None


@pytest.mark.parametrize("content", [b"x" * 99, b"x" * 99 + b"y", b"x" * 101, b"\xff" * 100, b""])
def test_a_program_that_is_not_the_one_written_is_none(tmp_path: Path, content: bytes) -> None:
    place = put(tmp_path, "aa")
    assert kept.read_result(place) == {"status": "compiled"}
    (place / kept.PROGRAM).write_bytes(content)
    assert kept.read_result(place) is None


def test_an_entry_without_a_seal_is_none(tmp_path: Path) -> None:
    place = put(tmp_path, "aa")
    (place / kept.RESULT).write_text(json.dumps({"status": "compiled"}))
    assert kept.read_result(place) is None


def test_a_damaged_entry_makes_room_for_a_whole_one(tmp_path: Path) -> None:
    work, place = tmp_path / "new-1", tmp_path / "aa" / "aa"
    work.mkdir()
    (work / "request.json").write_text("{}")
    kept.written({"status": "refused"}, work)
    place.mkdir(parents=True)
    (place / kept.RESULT).write_text("{")
    kept.keep(work, place)
    assert kept.read_result(place) == {"status": "refused"}
    assert [path.name for path in place.iterdir()] == [kept.RESULT]


def test_the_first_of_two_processes_is_kept(tmp_path: Path) -> None:
    work, place = tmp_path / "new-1", put(tmp_path, "aa")
    work.mkdir()
    kept.written({"status": "refused"}, work)
    kept.keep(work, place)
    assert kept.read_result(place) == {"status": "compiled"}
    assert [each.name for each in place.parent.iterdir()] == ["aa"]
