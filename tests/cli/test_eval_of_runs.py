"""`muster eval` and `muster export` of runs: whose tokenizer, what length, which step."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Outcome
from tests.cli.many import outcomes
from tests.cli.runs import add_step, damage

MODEL = Path(__file__).parents[1] / "data" / "parity" / "llama-3.2-tiny-tied"
TOKENIZER = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {
        "type": "WordLevel",
        "vocab": {"[UNK]": 0, "eight": 1, "devices": 2, "and": 3, "a": 4, "mesh": 5},
        "unk_token": "[UNK]",
    },
    "added_tokens": [],
}
DATA = ("--data", "words.txt", "--batch", "1")
COMMANDS = {
    "run": ("eval", "run", *DATA, "--json"),
    "run in words": ("eval", "run", *DATA),
    "run by bytes": ("eval", "run", *DATA, "--tokenizer", "bytes", "--seq", "16", "--json"),
    "an older step": ("eval", "run", *DATA, "--step", "4", "--json"),
    "export": ("export", "run", "--out", "exported", "--json"),
    "damaged meta": ("eval", "meta", *DATA, "--json"),
    "damaged and asked for": ("eval", "run", *DATA, "--step", "12"),
    "folder": ("eval", "with-tokenizer", *DATA, "--seq", "32", "--json"),
    "strange name": ("eval", str(MODEL), *DATA, "--seq", "16", "--tokenizer", "two\nlines"),
    "folder without": ("eval", str(MODEL), *DATA, "--seq", "16", "--json"),
    "not finite": ("eval", "nan", "--ids", "ids.npy", "--json"),
    "tokenizer gone": ("eval", "gone", *DATA),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "words.txt").write_text("eight devices and a mesh " * 40, "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    np.save(folder / "ids.npy", np.arange(16, dtype=np.int64).reshape(2, 8))
    shutil.copytree(MODEL, folder / "with-tokenizer")
    shutil.copyfile(folder / "tokenizer.json", folder / "with-tokenizer" / "tokenizer.json")
    shutil.copyfile(folder / "tokenizer.json", folder / "two\nlines")
    shutil.copytree(MODEL, folder / "nan")
    weights = load_file(folder / "nan" / "model.safetensors")
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], np.nan)
    save_file(weights, folder / "nan" / "model.safetensors")
    (imported,) = outcomes([["import", str(MODEL), "--out", "run"]], folder)
    assert imported.status == 0, imported
    checkpoints = folder / "run" / "checkpoints"
    options = {"tokenizer": str(folder / "tokenizer.json"), "sequence_length": 32}
    add_step(checkpoints, 4, options=options)
    add_step(checkpoints, 8, options=options)
    add_step(checkpoints, 12, options=options)
    shutil.copytree(folder / "run", folder / "meta")
    damage(checkpoints / "12", "params")
    damage(folder / "meta" / "checkpoints" / "12", "meta")
    shutil.copytree(folder / "run", folder / "gone")
    add_step(folder / "gone" / "checkpoints", 16, options=options | {"tokenizer": "gone.json"})
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Outcome]:
    answers = outcomes([list(words) for words in COMMANDS.values()], folder)
    return dict(zip(COMMANDS, answers, strict=True))


@pytest.mark.parametrize(("case", "item"), [("run", "params"), ("damaged meta", "meta")])
def test_a_run_brings_its_tokenizer_and_length_and_names_what_is_damaged(
    case: str, item: str, folder: Path, found: dict[str, Outcome]
) -> None:
    outcome = found[case]
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["tokenizer"] == str(folder / "tokenizer.json")
    assert (document["sequence_length"], document["step"]) == (32, 8)
    assert 190 <= document["tokens"] <= 200  # words, where there are 1,000 bytes
    damaged, used = outcome.err.splitlines()
    assert re.match(rf"muster: checkpoint .*/checkpoints/12 is damaged: {item}/", damaged)
    assert used == "muster: used step 8 instead"


def test_the_same_in_words(folder: Path, found: dict[str, Outcome]) -> None:
    lines = found["run in words"].out.splitlines()
    assert f"tokens by   {folder / 'tokenizer.json'}" in lines
    assert "step        8" in lines


def test_the_users_own_choices_come_first(found: dict[str, Outcome]) -> None:
    document = json.loads(found["run by bytes"].out)
    assert (document["tokenizer"], document["sequence_length"]) == ("bytes", 16)
    assert document["tokens"] > 900
    older = found["an older step"]
    assert json.loads(older.out)["step"] == 4
    assert older.err == ""


def test_a_damaged_step_that_is_asked_for_is_refused(found: dict[str, Outcome]) -> None:
    outcome = found["damaged and asked for"]
    assert outcome.status == 2
    assert "/12 is damaged: params/" in outcome.only_line


def test_export_takes_the_one_before_too(folder: Path, found: dict[str, Outcome]) -> None:
    outcome = found["export"]
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["step"] == 8
    assert outcome.err.splitlines()[-1] == "muster: used step 8 instead"
    assert (folder / "exported" / "tokenizer.json").is_file()


def test_a_folder_brings_its_own_tokenizer(found: dict[str, Outcome]) -> None:
    document = json.loads(found["folder"].out)
    assert document["tokenizer"] == "with-tokenizer/tokenizer.json"
    assert document["step"] is None
    assert document["tokens"] <= 200
    assert json.loads(found["folder without"].out)["tokenizer"] == "bytes"


def test_a_name_of_two_lines_is_shown_on_one(found: dict[str, Outcome]) -> None:
    outcome = found["strange name"]
    assert outcome.status == 0, outcome
    assert r"tokens by   'two\nlines'" in outcome.out


def test_a_tokenizer_that_is_gone_is_named(found: dict[str, Outcome]) -> None:
    outcome = found["tokenizer gone"]
    assert outcome.status == 2
    assert "no tokenizer gone.json" in outcome.only_line


def test_a_loss_that_is_not_finite_is_null(found: dict[str, Outcome]) -> None:
    document = json.loads(found["not finite"].out)
    assert (document["loss"], document["perplexity"], document["tokens"]) == (None, None, 14)
