"""Import and export undo each other, bit for bit."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from muster.sharding.hf_names import FAMILIES, hf_tensors
from muster.training.huggingface import export_folder, exporting, import_folder
from tests.training.huggingface import folders


@pytest.mark.parametrize("folder", folders.PARITY, ids=lambda folder: folder.name)
def test_parity_models_come_out_as_they_went_in(folder: Path, tmp_path: Path) -> None:
    model = folders.parity_model(folder)
    before = folders.all_tensors(folder)
    dtype = before["model.norm.weight"].dtype.name
    params = import_folder(folder, model, dtype=dtype)
    export_folder(params, model, tmp_path / "out", dtype=dtype, max_shard_bytes=60_000)
    after = folders.all_tensors(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all(folders.same(after[name], before[name]) for name in before)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors.index.json" in names
    assert "model-00001-of-00005.safetensors" in names or "float32" in dtype


@pytest.mark.parametrize("dtype", folders.DTYPES)
@pytest.mark.parametrize("case", folders.CONFIGS)
def test_every_bit_survives_export_and_import(case: str, dtype: str, tmp_path: Path) -> None:
    model = folders.model(case)
    params = folders.random_params(model, dtype)
    export_folder(params, model, tmp_path / "out", dtype=dtype)
    again = import_folder(tmp_path / "out", model, dtype=dtype)
    assert again.keys() == params.keys()
    assert all(folders.same(again[name], params[name]) for name in params)


def test_layouts_are_those_of_a_linear_layer(tmp_path: Path) -> None:
    model = folders.model("llama")
    params = folders.random_params(model, "float32")
    export_folder(params, model, tmp_path / "out", dtype="float32")
    stored = folders.all_tensors(tmp_path / "out")
    query_DNH = np.asarray(params["layers.attention.query"][1])
    q_proj = stored["model.layers.1.self_attn.q_proj.weight"]
    assert folders.same(q_proj, query_DNH.reshape(32, 40).T)
    output_DNH = np.asarray(params["layers.attention.output"][0])
    o_proj = stored["model.layers.0.self_attn.o_proj.weight"]
    assert folders.same(o_proj, output_DNH.reshape(32, 40))


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe-some-dense"])
def test_fused_experts_are_the_published_ones(case: str, tmp_path: Path) -> None:
    model = folders.model(case)
    arrays = folders.random_arrays(model, "float32")
    fused = {}
    for tensor in hf_tensors(model, fused=True):
        for place in tensor.places():
            array = arrays[tensor.weight][place] if place else arrays[tensor.weight]
            if tensor.weight in {"layers.experts.gate", "layers.experts.up"}:
                layer = place[0]
                gate, up = (arrays[f"layers.experts.{part}"][layer] for part in ("gate", "up"))
                array_EFD = np.concatenate([gate, up], axis=2).transpose(0, 2, 1)
                fused[tensor.name(place)] = array_EFD
            else:
                fused[tensor.name(place)] = array.transpose(tensor.to_stored).reshape(tensor.shape)
    export_folder(arrays, model, tmp_path / "published", dtype="float32")
    folders.rewrite(tmp_path / "published", tmp_path / "fused", fused)
    again = import_folder(tmp_path / "fused", model, dtype="float32")
    assert all(folders.same(again[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_of_an_export_is_the_same_model(family: str, tmp_path: Path) -> None:
    model = folders.model(next(c for c in folders.CONFIGS if c.split("-")[0] == family))
    export_folder(folders.random_arrays(model, "float32"), model, tmp_path / "o", dtype="bfloat16")
    again = folders.parity_model(tmp_path / "o")
    assert hf_tensors(again) == hf_tensors(model)
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["architectures"] == [FAMILIES[family]]
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"


def test_numbers_are_rounded_to_nearest_even(tmp_path: Path) -> None:
    model = folders.model("llama-tied")
    rng = np.random.default_rng(1)
    params = {
        tensor.weight: rng.normal(size=tensor.stacked).astype(np.float32)
        for tensor in hf_tensors(model)
    }
    export_folder(params, model, tmp_path / "float32", dtype="float32")
    export_folder(params, model, tmp_path / "bfloat16", dtype="bfloat16")
    narrow = import_folder(tmp_path / "float32", model, dtype="bfloat16")
    stored = import_folder(tmp_path / "bfloat16", model, dtype="bfloat16")
    wide = import_folder(tmp_path / "bfloat16", model, dtype=jnp.float32)
    for name, array in params.items():
        rounded = array.astype(ml_dtypes.bfloat16)
        assert folders.same(narrow[name], rounded)
        assert folders.same(stored[name], rounded)
        assert folders.same(wide[name], rounded.astype(np.float32))


AXES = ("slice", "stage", "data", "fsdp", "sequence", "expert", "tensor")
LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, PartitionSpec]]] = {
    "tensor": (
        (1, 1, 2, 2, 1, 1, 2),
        {
            "layers.attention.query": PartitionSpec(None, "fsdp", "tensor"),
            "layers.attention.output": PartitionSpec(None, "tensor", None, "fsdp"),
            "layers.attention.key.bias": PartitionSpec(None, None, "tensor"),
            "layers.mlp.down": PartitionSpec(None, "tensor", ("fsdp", "sequence")),
            "embedding": PartitionSpec("tensor", "fsdp"),
            "head": PartitionSpec("fsdp", "tensor"),
        },
    ),
    "expert": (
        (1, 2, 1, 1, 1, 4, 1),
        {
            "layers.experts.gate": PartitionSpec("stage", "expert"),
            "layers.router": PartitionSpec(None, "expert"),
            "embedding": PartitionSpec(None, "expert"),
        },
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["llama-biases", "mixtral"])
def test_every_device_gets_its_part(case: str, layout: str, tmp_path: Path) -> None:
    sizes, specs = LAYOUTS[layout]
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), AXES)
    model = folders.model(case)
    arrays = folders.random_arrays(model, "bfloat16")
    shardings = {
        name: NamedSharding(mesh, specs.get(name, PartitionSpec(*(None,) * array.ndim)))
        for name, array in arrays.items()
    }
    export_folder(arrays, model, tmp_path / "out", dtype="bfloat16")
    params = import_folder(
        tmp_path / "out", model, dtype="bfloat16", shardings=shardings, padded_vocab=72
    )
    for name, array in arrays.items():
        assert params[name].sharding.is_equivalent_to(shardings[name], array.ndim)
        dim = {"embedding": 0, "head": 1}.get(name)
        padding = [(0, 2 if index == dim else 0) for index in range(array.ndim)]
        assert folders.same(params[name], np.pad(array, padding)), name
    export_folder(params, model, tmp_path / "again", dtype="bfloat16")
    again = folders.all_tensors(tmp_path / "again")
    before = folders.all_tensors(tmp_path / "out")
    assert again.keys() == before.keys()
    assert all(folders.same(again[name], before[name]) for name in before)


def test_a_tied_head_that_is_stored_too_is_one_weight(tmp_path: Path) -> None:
    source = folders.DATA / "parity" / "llama-3.2-tiny-tied"
    tensors = folders.all_tensors(source)
    both = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    folder = folders.rewrite(source, tmp_path / "both", both)
    params = import_folder(folder, folders.parity_model(source), dtype="float32")
    assert "head" not in params
    assert folders.same(params["embedding"], tensors["model.embed_tokens.weight"])


def test_old_buffers_are_passed_over(tmp_path: Path) -> None:
    source = folders.DATA / "parity" / "llama-3.1-tiny"
    tensors = folders.all_tensors(source)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    folder = folders.rewrite(source, tmp_path / "old", {**tensors, **buffer})
    params = import_folder(folder, folders.parity_model(source), dtype="float32")
    assert folders.same(params["final_norm"], tensors["model.norm.weight"])


def test_shards_outside_host_memory_are_cut_on_their_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_in_host_memory", lambda _: False)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("stage", "fsdp"))
    model = folders.model("mixtral")
    params = folders.random_params(model, "float32")
    sharding = NamedSharding(mesh, PartitionSpec("stage", "fsdp"))
    split = {
        name: jax.device_put(array, sharding) if name.startswith("layers.experts") else array
        for name, array in params.items()
    }
    export_folder(split, model, tmp_path / "out", dtype="float32")
    again = import_folder(tmp_path / "out", model, dtype="float32")
    assert all(folders.same(again[name], params[name]) for name in params)
