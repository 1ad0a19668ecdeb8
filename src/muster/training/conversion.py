"""Whole conversions: a Hugging Face folder to a checkpoint, and a checkpoint to such a folder."""

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from muster.errors import BadInput
from muster.models.hf_config import architecture_from_config, printable, read_config
from muster.roofline.params import param_counts
from muster.sharding.mesh import Layout
from muster.training.checkpoints import Checkpoints, bytes_of, removed_if_refused
from muster.training.evaluate import architecture_of
from muster.training.huggingface import export_folder, import_folder, tokenizer_files
from muster.training.huggingface.folder import stored_tensors
from muster.training.huggingface.matching import matched_tensors
from muster.training.job import CHECKPOINTS, checkpoints_folder
from muster.training.mesh import make_mesh
from muster.training.params import abstract_params
from muster.training.partition import Partition

FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def import_checkpoint(source: Path, out: Path, *, dtype: str | None) -> dict[str, object]:
    """Write a Hugging Face folder's weights as step 0 of a checkpoint folder.

    Weights are split over this process's devices while they are read.

    Args:
        source: the folder.
        out: a new folder; `muster train --init` starts from it.
        dtype: in which weights are kept; None for what most of the stored ones are in.

    Raises:
        BadInput: the source is not whole, or the target has a checkpoint already.
    """
    architecture = architecture_from_config(read_config(source), name=source.resolve().name)
    kept = dtype or _usual(source)
    place = _all_devices()
    folder = out / CHECKPOINTS
    with (
        removed_if_refused(folder.absolute()),
        Checkpoints(folder, vocab_size=architecture.vocab_size) as checkpoints,
    ):
        if checkpoints.found():
            raise BadInput(f"{out} holds a checkpoint already; name a new folder with --out")
        abstract = abstract_params(architecture, place, jnp.dtype(kept))
        matched_tensors(stored_tensors(source), architecture, source)  # before a folder is made
        checkpoints.check_room(bytes_of(abstract))
        params = import_folder(
            source, architecture, dtype=kept, shardings=place.params(architecture)
        )
        meta = {
            "muster": 1,
            "step": 0,
            "name": architecture.name,
            "config": dict(architecture.config),
            "versions": {name: version(name) for name in ("muster", "jax")},
        }
        checkpoints.save(0, params=params, meta=meta)
    return {
        "model": architecture.name,
        "parameters": param_counts(architecture).trainable,
        "bytes": bytes_of(abstract),
        "dtype": kept,
        "step": 0,
        "folder": str(out),
    }


def export_checkpoint(
    source: Path, out: Path, *, dtype: str | None, step: int | None, tokenizer: Path | None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Write a checkpoint's weights as a folder that Hugging Face loads, weight by weight.

    Returns:
        What was written, and one line for each newer checkpoint that is not usable.

    Raises:
        BadInput: the checkpoint is not whole, or the target has something in it.
    """
    folder = checkpoints_folder(source)
    with Checkpoints(folder) as checkpoints:
        architecture = architecture_of(checkpoints.meta(step), source)
    place = _all_devices()
    with Checkpoints(folder, vocab_size=architecture.vocab_size) as checkpoints:
        at, damaged = checkpoints.newest_whole(step)
        meta, shapes = checkpoints.meta(at), checkpoints.shapes(at)
        stored = Counter(jnp.dtype(shape.dtype).name for shape in shapes.values())
        usual = stored.most_common(1)[0][0]
        kept = dtype or usual
        abstract = abstract_params(architecture, place, jnp.dtype(usual))

        def weight(name: str) -> jax.Array:
            restored = checkpoints.restore({name: abstract[name]}, step=at, part=True)
            return restored.params[name]

        export_folder(
            weight,
            architecture,
            out,
            dtype=kept,
            tokenizer_files=_tokenizer(tokenizer, meta),
        )
    counts = param_counts(architecture)
    written: dict[str, object] = {
        "model": architecture.name,
        "parameters": counts.trainable,
        "bytes": counts.trainable * jnp.dtype(kept).itemsize,
        "dtype": kept,
        "step": at,
        "folder": str(out),
    }
    return written, damaged


def _tokenizer(given: Path | None, meta: Mapping[str, Any]) -> tuple[Path, ...]:
    """The tokenizer's files that go with a model: those named, else those that it was trained with.

    Raises:
        BadInput: none was where it was said to be.
    """
    trained = meta.get("options", {}).get("tokenizer", "bytes")
    source = given or (None if trained == "bytes" else Path(trained))
    if source is None:
        return ()
    if given is not None and not (given.is_dir() or given.is_file()):
        raise BadInput(f"no tokenizer {printable(given)}; give a tokenizer.json or its folder")
    folder = source if source.is_dir() else source.parent
    found = tokenizer_files(folder) if folder.is_dir() else ()
    if given is not None and not found:
        raise BadInput(f"{given} holds no tokenizer; give the folder of its tokenizer.json")
    return found


def _all_devices() -> Partition:
    layout = Layout(fsdp=jax.local_device_count())
    return Partition(mesh=make_mesh(layout), layout=layout)


def _usual(folder: Path) -> str:
    """The format that most tensors of a folder are stored in."""
    kinds = Counter(tensor.code for tensor in stored_tensors(folder).values())
    most = next((kind for kind, _ in kinds.most_common() if kind in FLOATS), "F32")
    return FLOATS[most]
