"""Folders that are no checkpoint of the model: one line each, which names what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from muster.errors import BadInput
from muster.training.huggingface import import_folder
from tests.training.huggingface import folders

UNTIED = folders.DATA / "parity" / "llama-3.1-tiny"
TIED = folders.DATA / "parity" / "llama-3.2-tiny-tied"
SHARDED = folders.DATA / "parity" / "llama-3-tiny-sharded-bf16"
type Tensors = dict[str, NDArray[Any]]


def refusal(folder: Path, source: Path = UNTIED, dtype: str = "float32") -> str:
    with pytest.raises(BadInput) as caught:
        import_folder(folder, folders.parity_model(source), dtype=dtype)
    message = str(caught.value)
    assert "\n" not in message
    return message


def spoiled(tmp_path: Path, change: Callable[[Tensors], object], source: Path = UNTIED) -> str:
    tensors = folders.all_tensors(source)
    change(tensors)
    return refusal(folders.rewrite(source, tmp_path / "spoiled", tensors), source)


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_missing_tensors(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if "layers.1." in name]:
            del tensors[name]

    message = spoiled(tmp_path, change)
    assert "does not hold llama-3.1-tiny: 9 tensors missing" in message
    assert "(model.layers.1.input_layernorm.weight, " in message
    assert message.endswith(", ...)")


def test_an_untied_head_that_is_absent(tmp_path: Path) -> None:
    message = spoiled(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    assert "1 tensor missing (lm_head.weight)" in message


def test_tensors_of_another_model(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    message = spoiled(tmp_path, lambda tensors: tensors.update(extra))
    assert "1 tensor not of this model (model.layers.0.self_attn.q_proj.bias)" in message


def test_another_shape(tmp_path: Path) -> None:
    wrong = {"model.norm.weight": np.ones(65, np.float32)}
    message = spoiled(tmp_path, lambda tensors: tensors.update(wrong))
    assert "1 tensor of another shape (model.norm.weight is [65], not [64])" in message


def test_more_layers_and_another_shape_are_both_named(tmp_path: Path) -> None:
    more = {
        "model.layers.2.input_layernorm.weight": np.ones(64, np.float32),
        "lm_head.weight": np.ones((300, 64), np.float32),
    }
    message = spoiled(tmp_path, lambda tensors: tensors.update(more))
    assert "not of this model (model.layers.2.input_layernorm.weight); " in message
    assert "(lm_head.weight is [300, 64], not [256, 64])" in message


def test_a_quantized_tensor(tmp_path: Path) -> None:
    quantized = {"lm_head.weight": np.ones((256, 64), np.int8)}
    message = spoiled(tmp_path, lambda tensors: tensors.update(quantized))
    assert "of a format that is not read (lm_head.weight is I8, not F32, BF16, F16)" in message


def test_a_second_head_that_differs_from_the_tied_one(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        head = tensors["model.embed_tokens.weight"].copy()
        head[255, 63] += 1
        tensors["lm_head.weight"] = head

    message = spoiled(tmp_path, change, source=TIED)
    assert "lm_head.weight differs from model.embed_tokens.weight" in message


def test_a_number_beyond_float16(tmp_path: Path) -> None:
    tensors = folders.all_tensors(UNTIED)
    tensors["model.norm.weight"] = np.full(64, 1e6, np.float32)
    folder = folders.rewrite(UNTIED, tmp_path / "large", tensors)
    message = refusal(folder, dtype="float16")
    assert message.startswith("model.norm.weight has numbers beyond 65,504")


def test_a_number_beyond_float16_in_bfloat16(tmp_path: Path) -> None:
    tensors = folders.all_tensors(UNTIED)
    tensors["model.norm.weight"] = np.full(64, 1e6, ml_dtypes.bfloat16)
    folder = folders.rewrite(UNTIED, tmp_path / "large", tensors)
    assert "beyond 65,504" in refusal(folder, dtype="float16")


def test_a_dtype_that_no_checkpoint_has() -> None:
    assert "unknown dtype of a checkpoint 'float8'" in refusal(UNTIED, dtype="float8")


def test_no_folder(tmp_path: Path) -> None:
    assert "nowhere is no folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "file is no folder" in refusal(tmp_path / "file")


def test_nothing_to_read(tmp_path: Path) -> None:
    assert "has no model.safetensors and no model.safetensors.index.json" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "holds pytorch_model.bin and no safetensors" in refusal(tmp_path)


def test_files_without_their_index(tmp_path: Path) -> None:
    folder = copied(SHARDED, tmp_path / "copy")
    (folder / "model.safetensors.index.json").unlink()
    message = refusal(folder, SHARDED)
    assert "00003-of-00005.safetensors and 2 more, but neither model.safetensors nor" in message


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    folder = copied(SHARDED, tmp_path / "copy")
    (folder / "model-00002-of-00005.safetensors").unlink()
    message = refusal(folder, SHARDED)
    assert "index.json names model-00002-of-00005.safetensors, not in the folder" in message


def test_an_index_that_places_a_tensor_where_it_is_not(tmp_path: Path) -> None:
    folder = copied(SHARDED, tmp_path / "copy")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["model.more.weight"] = "model-00002-of-00005.safetensors"
    file.write_text(json.dumps(index))
    assert "lacks model.more.weight, which the index places there" in refusal(folder, SHARDED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "it must be a file beside it"),
        ('{"weight_map": {"a": 3}}', "it must be a file beside it"),
        ('{"weight_map": {"a": ""}}', "it must be a file beside it"),
    ],
)
def test_an_unusable_index(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 1000, 400_000])
def test_a_truncated_file(tmp_path: Path, kept: int) -> None:
    folder = copied(UNTIED, tmp_path / "copy")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors is damaged or no safetensors file" in refusal(folder)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(1000))
    assert "is damaged or no safetensors file" in refusal(tmp_path)


def test_a_float8_file(tmp_path: Path) -> None:
    header = {
        "lm_head.weight": {"dtype": "F8_E4M3", "shape": [256, 64], "data_offsets": [0, 16384]}
    }
    folders.write_header(tmp_path / "model.safetensors", header, 16384)
    message = refusal(tmp_path)
    assert "20 tensors missing" in message
    assert "lm_head.weight is F8_E4M3, not F32, BF16, F16" in message
