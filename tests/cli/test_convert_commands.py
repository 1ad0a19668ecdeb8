"""`muster import` and `muster export`: there and back bit for bit, and what each refuses."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Outcome
from tests.cli.many import outcomes

PARITY = Path(__file__).parents[1] / "data" / "parity"
# Sharded bfloat16; tied float32.
FOLDERS = ("llama-3-tiny-sharded-bf16", "llama-3.2-tiny-tied")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convert")


@pytest.fixture(scope="module")
def converted(folder: Path) -> dict[str, Outcome]:
    np.save(folder / "ids.npy", np.arange(64, dtype=np.int64).reshape(2, 32) % 256)
    commands = {}
    for name in FOLDERS:
        commands[f"import {name}"] = ["import", str(PARITY / name), "--out", f"{name}.ckpt"]
        commands[f"export {name}"] = ["export", f"{name}.ckpt", "--out", name]
        for source in (str(PARITY / name), f"{name}.ckpt", name):
            words = ["eval", source, "--ids", "ids.npy", "--json"]
            commands[f"eval {source}"] = words
    commands["import as bf16"] = [
        "import", str(PARITY / FOLDERS[1]), "--out", "narrow.ckpt", "--dtype", "bfloat16", "--json",
    ]  # fmt: skip
    found = outcomes(list(commands.values()), folder)
    return dict(zip(commands, found, strict=True))


def tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor's format, shape and bytes."""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as opened:
            shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        for name, shape in shapes.items():
            first, last = (8 + length + offset for offset in header[name]["data_offsets"])
            found[name] = (header[name]["dtype"], list(shape), raw[first:last])
    return found


@pytest.mark.parametrize("name", FOLDERS)
def test_there_and_back_is_bit_exact(
    name: str, folder: Path, converted: dict[str, Outcome]
) -> None:
    for command in ("import", "export"):
        outcome = converted[f"{command} {name}"]
        assert outcome.status == 0, outcome
        assert re.search(rf"^{name}: 1[\d,]+ parameters, .* step 0, in {name}", outcome.out)
    assert tensors(folder / name) == tensors(PARITY / name)
    config = json.loads((folder / name / "config.json").read_text())
    before = json.loads((PARITY / name / "config.json").read_text())
    assert {key: config[key] for key in before} == before | {"dtype": config["dtype"]}


@pytest.mark.parametrize("name", FOLDERS)
def test_all_three_forms_evaluate_alike(name: str, converted: dict[str, Outcome]) -> None:
    found = [
        json.loads(converted[f"eval {source}"].out)
        for source in (str(PARITY / name), f"{name}.ckpt", name)
    ]
    assert [document.pop("step") for document in found] == [None, 0, None]
    assert found[0] == found[1] == found[2]
    assert found[0]["tokens"] == 62


def test_import_rounds_when_told_to(converted: dict[str, Outcome]) -> None:
    document = json.loads(converted["import as bf16"].out)
    assert document["muster"] == 1
    assert document["dtype"] == "bfloat16"
    assert document["bytes"] == 2 * document["parameters"]


REFUSED = {
    "no such folder": (("import", "nowhere", "--out", "new"), "no folder nowhere"),
    "no weights": (("import", "bare", "--out", "new"), "safetensors"),
    "a tensor missing": (("import", "lacking", "--out", "new"), r"model\.norm\.weight"),
    "an unknown format": (
        ("import", "whole", "--out", "new", "--dtype", "f32"),
        "--dtype 'f32'; choose from float32, bfloat16, float16",
    ),
    "numbers beyond the format": (
        ("import", "large", "--out", "new", "--dtype", "float16"),
        "has numbers beyond 65,504",
    ),
    "a damaged checkpoint there already": (
        ("import", "whole", "--out", "damaged"),
        "damaged holds a checkpoint already",
    ),
    "a backslash": (("import", "whole", "--out", "new\\"), "takes a backslash for a slash"),
    "no name of a target": (("import", "whole", "--out", ""), "--out '' names no folder$"),
    "no name of a source": (("import", "", "--out", "new"), "first argument '' names no folder$"),
    "nothing named to export": (("export", "done", "--out", ""), "--out '' names no folder$"),
    "no name of a tokenizer": (
        ("export", "done", "--out", "new", "--tokenizer", ""),
        "--tokenizer '' names no folder$",
    ),
    "nobody's home": (
        ("import", "whole", "--out", "~nouser/new"),
        "--out '~nouser/new': there is no home of ~nouser; write the whole path$",
    ),
    "twice to import": (
        ("import", "whole", "--out", "new", "--out", "newer"),
        "--out is given twice; give it once$",
    ),
    "twice to export": (
        ("export", "done", "--out", "new", "--step", "0", "--step", "0"),
        "--step is given twice; give it once$",
    ),
    "a checkpoint there already": (("import", "whole", "--out", "done"), "done holds a checkpoint"),
    "no checkpoint": (("export", "nowhere", "--out", "new"), "no folder nowhere"),
    "nothing in it": (("export", "bare", "--out", "new"), "there is no checkpoint in"),
    "no such step": (
        ("export", "done", "--out", "new", "--step", "7"),
        r"there is no step 7 in .*; there is 0",
    ),
    "step zero spelled": (("export", "done", "--out", "new", "--step", "x"), "--step"),
    "something in the way": (("export", "done", "--out", "bare"), "bare"),
    "a pipe as tokenizer": (
        ("export", "done", "--out", "new", "--tokenizer", "kept/pipe"),
        "no tokenizer kept/pipe; give a tokenizer.json or its folder",
    ),
    "no tokenizer": (
        ("export", "done", "--out", "new", "--tokenizer", "nowhere"),
        "nowhere",
    ),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("refused")
    shutil.copytree(PARITY / FOLDERS[0], folder / "whole")
    (folder / "bare").mkdir()
    shutil.copyfile(PARITY / FOLDERS[0] / "config.json", folder / "bare" / "config.json")
    lacking = folder / "lacking"
    shutil.copytree(PARITY / FOLDERS[1], lacking)
    held = load_file(lacking / "model.safetensors")
    del held["model.norm.weight"]
    save_file(held, lacking / "model.safetensors")
    large = folder / "large"
    shutil.copytree(PARITY / FOLDERS[1], large)
    held = load_file(large / "model.safetensors")
    held["model.norm.weight"] = np.full_like(held["model.norm.weight"], 1e6)
    save_file(held, large / "model.safetensors")
    (folder / "kept").mkdir()
    (folder / "kept" / "tokenizer.json").write_text("{}")
    os.mkfifo(folder / "kept" / "pipe")
    (folder / "damaged" / "checkpoints" / "7").mkdir(parents=True)
    first, *rest = outcomes(
        [["import", "whole", "--out", "done"], *(list(words) for words, _ in REFUSED.values())],
        folder,
    )
    assert first.status == 0, first
    return folder, dict(zip(REFUSED, rest, strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line(case: str, refused: tuple[Path, dict[str, Outcome]]) -> None:
    folder, found = refused
    outcome = found[case]
    assert outcome.status == 2, outcome
    assert re.search(REFUSED[case][1], outcome.only_line), outcome.only_line
    assert not (folder / "new").exists()


def test_step_zero_can_be_asked_for(folder: Path, converted: dict[str, Outcome]) -> None:
    """Imported weights are of step 0."""
    assert converted[f"import {FOLDERS[0]}"].status == 0
    (outcome,) = outcomes(
        [["export", f"{FOLDERS[0]}.ckpt", "--out", "zero", "--step", "0"]], folder
    )
    assert outcome.status == 0, outcome.err
