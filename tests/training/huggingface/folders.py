"""Small models with weights of every kind of number, and folders to spoil."""

import json
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config, read_config
from muster.sharding.hf_names import hf_tensors
from muster.training.params import Params

DATA = Path(__file__).parents[2] / "data"
PARITY = sorted((DATA / "parity").iterdir())
CONFIGS: dict[str, dict[str, Any]] = {
    entry["case"]: entry["config"]
    for entry in json.loads((DATA / "hf_checkpoints.json").read_text())["entries"]
}
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def model(case: str, **changes: object) -> Architecture:
    return architecture_from_config({**CONFIGS[case], **changes}, name=case)


def parity_model(folder: Path) -> Architecture:
    return architecture_from_config(read_config(folder), name=folder.name)


def random_arrays(architecture: Architecture, dtype: str) -> dict[str, NDArray[Any]]:
    """Every bit pattern is as likely as any other: signed zeros, subnormals, infinities, NaNs."""
    rng = np.random.default_rng(0)
    kind = np.dtype(DTYPES[dtype])
    return {
        tensor.weight: np.frombuffer(
            rng.bytes(int(np.prod(tensor.stacked)) * kind.itemsize), kind
        ).reshape(tensor.stacked)
        for tensor in hf_tensors(architecture)
    }


def random_params(architecture: Architecture, dtype: str) -> Params:
    return {name: jnp.asarray(array) for name, array in random_arrays(architecture, dtype).items()}


def bits(array: jax.Array | NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)


def same(one: Any, other: Any) -> bool:
    """Whether two arrays are equal bit for bit, NaNs included."""
    alike = one.shape == other.shape and np.dtype(one.dtype) == np.dtype(other.dtype)
    return alike and np.array_equal(bits(one), bits(other))


def all_tensors(folder: Path) -> dict[str, NDArray[Any]]:
    return {
        name: array
        for file in sorted(folder.glob("*.safetensors"))
        for name, array in load_file(file).items()
    }


def rewrite(source: Path, target: Path, tensors: dict[str, NDArray[Any]]) -> Path:
    """A folder with the config of another and one file of these tensors."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    kept = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def write_header(file: Path, header: dict[str, Any], nbytes: int) -> None:
    """A safetensors file with a header of our choice and zeros behind it."""
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(nbytes))
