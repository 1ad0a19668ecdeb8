"""What an exported folder holds, and when there is none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.sharding.hf_names import hf_tensors
from muster.training.huggingface import export_folder, exporting, tokenizer_files
from muster.training.huggingface.shards import Entry, shards_of
from tests.training.huggingface import folders


@pytest.fixture
def model() -> Architecture:
    return folders.model("llama", _provenance={"hf_id": "x/y"}, quantization_config={"bits": 4})


@pytest.fixture
def arrays(model: Architecture) -> dict[str, Any]:
    return folders.random_arrays(model, "float32")


def refusal(arrays: Any, model: Architecture, folder: Path, **options: Any) -> str:
    with pytest.raises(BadInput) as caught:
        export_folder(arrays, model, folder, dtype="float32", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_files_of_a_small_model(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    export_folder(arrays, model, tmp_path / "a" / "out", dtype="float32")
    names = {path.name for path in (tmp_path / "a" / "out").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]
    config = json.loads((tmp_path / "a" / "out" / "config.json").read_text())
    assert "_provenance" not in config
    assert "quantization_config" not in config
    assert config["hidden_size"] == 32
    assert config["vocab_size"] == 70
    generation = json.loads((tmp_path / "a" / "out" / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (1, 2)
    with safe_open(tmp_path / "a" / "out" / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_no_generation_config_without_special_tokens(tmp_path: Path) -> None:
    nobody = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = folders.model("llama", **nobody)
    export_folder(folders.random_arrays(model, "float32"), model, tmp_path / "out", dtype="float32")
    assert not (tmp_path / "out" / "generation_config.json").exists()


def test_files_of_a_given_size_and_their_index(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    limit = 20_000
    export_folder(arrays, model, tmp_path / "out", dtype="float32", max_shard_bytes=limit)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "out").glob("model-*.safetensors"))
    assert len(files) > 2
    held: dict[str, str] = {}
    for file in files:
        assert file.name.endswith(f"-of-{len(files):05}.safetensors")
        with safe_open(file, framework="numpy") as opened:
            held |= dict.fromkeys(opened.keys(), file.name)
        assert file.stat().st_size <= limit + 2000  # the header besides
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays.values())
    assert index["weight_map"]["model.embed_tokens.weight"] == files[0].name
    assert index["weight_map"]["lm_head.weight"] == files[-1].name


def test_a_tensor_above_the_limit_has_a_file_of_its_own() -> None:
    entries = [Entry(name=n, shape=(size,), code="F32", itemsize=4) for n, size in SIZES.items()]
    cut = [[entry.name for entry in shard] for shard in shards_of(entries, 40)]
    assert cut == [["a", "b"], ["c"], ["d", "e"]]


SIZES = {"a": 4, "b": 6, "c": 11, "d": 1, "e": 9}  # of 4 bytes each


def test_weights_are_asked_for_one_at_a_time(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    asked = []

    def give(name: str) -> Any:
        asked.append(name)
        return arrays[name]

    export_folder(give, model, tmp_path / "out", dtype="float32")
    assert sorted(asked) == sorted(arrays)
    export_folder(arrays, model, tmp_path / "same", dtype="float32")
    one, other = (folders.all_tensors(tmp_path / name) for name in ("out", "same"))
    assert all(folders.same(one[name], other[name]) for name in other)


def test_a_padded_vocabulary_is_stripped(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    export_folder(arrays, model, tmp_path / "plain", dtype="float32")
    padded = {
        **arrays,
        "embedding": np.pad(arrays["embedding"], [(0, 58), (0, 0)]),
        "head": np.pad(arrays["head"], [(0, 0), (0, 58)]),
    }
    export_folder(padded, model, tmp_path / "padded", dtype="float32")
    one, other = (tmp_path / name / "model.safetensors" for name in ("plain", "padded"))
    assert one.read_bytes() == other.read_bytes()


def test_tokenizer_files_are_copied(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "generation_config.json", "model.safetensors", "README.md"):
        (source / name).write_text(name)
    files = tokenizer_files(source)
    assert [file.name for file in files] == ["tokenizer.json", "generation_config.json"]
    export_folder(arrays, model, tmp_path / "out", dtype="float32", tokenizer_files=files)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "tokenizer.json"
    assert (tmp_path / "out" / "generation_config.json").read_text() == "generation_config.json"


def test_a_tokenizer_file_that_is_not_there(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    absent = tmp_path / "tokenizer.json"
    message = refusal(arrays, model, tmp_path / "out", tokenizer_files=[absent])
    assert message.startswith("no file ")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_file_in_the_place_of_the_config(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    message = refusal(arrays, model, tmp_path / "out", tokenizer_files=[tmp_path / "config.json"])
    assert "config.json is no file of a tokenizer" in message


def test_a_folder_with_something_in_it_is_left_alone(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    assert "is not empty" in refusal(arrays, model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert "is there and no folder" in refusal(arrays, model, tmp_path / "notes")


def test_an_empty_folder_is_filled(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    export_folder(arrays, model, tmp_path / "out", dtype="float32")
    assert (tmp_path / "out" / "config.json").exists()
    assert hidden(tmp_path) == []


def test_nothing_is_left_when_the_weights_end_early(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    def give(name: str) -> Any:
        if name == "head":
            (half,) = hidden(tmp_path)
            assert (tmp_path / half / "model.safetensors").exists()
            raise KeyboardInterrupt
        return arrays[name]

    with pytest.raises(KeyboardInterrupt):
        export_folder(give, model, tmp_path / "out", dtype="float32")
    assert list(tmp_path.iterdir()) == []


def test_weights_of_another_model(
    arrays: dict[str, Any], model: Architecture, tmp_path: Path
) -> None:
    less = {name: array for name, array in arrays.items() if name != "head"}
    assert refusal(less, model, tmp_path / "out").endswith("lack head")
    more = {**arrays, "layers.router": arrays["head"]}
    assert refusal(more, model, tmp_path / "out").endswith("has no weights layers.router")
    short = {**arrays, "layers.mlp.up": arrays["layers.mlp.up"][:1]}
    assert "layers.mlp.up is [1, 32, 56], not [2, 32, 56]" in refusal(short, model, tmp_path / "o")
    narrow = {**arrays, "embedding": arrays["embedding"][:60]}
    assert "embedding is [60, 32], not [70, 32]" in refusal(narrow, model, tmp_path / "o")
    assert list(tmp_path.iterdir()) == []


def test_a_number_beyond_float16(model: Architecture, tmp_path: Path) -> None:
    large = {
        tensor.weight: np.full(tensor.stacked, 1e5, np.float32) for tensor in hf_tensors(model)
    }
    with pytest.raises(BadInput, match=r"^model\.\S+ has numbers beyond 65,504"):
        export_folder(large, model, tmp_path / "out", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_seen_before_anything_is_written(
    arrays: dict[str, Any],
    model: Architecture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    message = refusal(arrays, model, tmp_path / "out")
    assert message.startswith("the weights need ")
    assert message.endswith("GB free")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up(
    arrays: dict[str, Any],
    model: Architecture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_configs", full)
    message = refusal(arrays, model, tmp_path / "out")
    assert message.endswith("out: No space left on device")
    assert list(tmp_path.iterdir()) == []
