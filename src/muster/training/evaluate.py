"""Loss of a model on given data or given token ids, and its logits: how a conversion is checked."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config, read_config
from muster.sharding.mesh import Layout
from muster.training.batch import Batch
from muster.training.checkpoints import Checkpoints
from muster.training.data import DataConfig, open_stream
from muster.training.huggingface import import_folder
from muster.training.job import checkpoints_folder
from muster.training.loss import logits
from muster.training.model import Model, hidden_states, output_matrix
from muster.training.params import Params, abstract_params
from muster.training.setup import model_on
from muster.training.step import Objective, evaluate

type Ids = np.ndarray[tuple[int, int], np.dtype[np.integer[Any]]]
type Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
ROWS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model makes of some text.

    Attributes:
        loss: mean cross-entropy a token, natural logarithm.
        tokens: tokens that were predicted.
    """

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model's arrays on this process's devices, and how to run them."""

    architecture: Architecture
    params: Params
    model: Model


def load(source: Path, *, sequence_length: int, dtype: str, step: int | None = None) -> Loaded:
    """Load a Hugging Face folder, a run's folder or its checkpoints, to evaluate it.

    Rows are split over all devices.

    Args:
        source: the folder.
        sequence_length: T of what will be evaluated.
        dtype: in which parameters are held and everything is computed.
        step: of a run's checkpoints; None for the newest.

    Raises:
        BadInput: it is none of these, or not whole.
    """
    layout = Layout(fsdp=1, data=jax.local_device_count())
    if any((source / name).exists() for name in WEIGHTS) or (source / "config.json").exists():
        if step is not None:
            raise BadInput(f"{source} is a Hugging Face folder, which has no step {step}")
        config = read_config(source)
        architecture = architecture_from_config(config, name=source.resolve().name)
        model = model_on(architecture, layout, sequence_length, compute_dtype=dtype)
        params = import_folder(
            source,
            architecture,
            dtype=dtype,
            shardings=model.partition.params(architecture),
        )
        return Loaded(architecture=architecture, params=params, model=model)
    with Checkpoints(checkpoints_folder(source)) as checkpoints:
        architecture = architecture_of(checkpoints.meta(step), source)
    model = model_on(architecture, layout, sequence_length, compute_dtype=dtype)
    with Checkpoints(checkpoints_folder(source), vocab_size=architecture.vocab_size) as checkpoints:
        wanted = abstract_params(architecture, model.partition, jnp.dtype(dtype))
        restored = checkpoints.restore(wanted, step=step)
    return Loaded(architecture=architecture, params=restored.params, model=model)


def architecture_of(meta: Mapping[str, Any], where: Path) -> Architecture:
    """The model that a checkpoint is of.

    Raises:
        BadInput: the checkpoint does not say.
    """
    config, name = meta.get("config"), meta.get("name")
    if not isinstance(config, Mapping) or not isinstance(name, str):
        raise BadInput(f"{where} does not say what model it is of; muster's checkpoints do")
    return architecture_from_config(config, name=name)


def evaluate_ids(
    loaded: Loaded, ids: Ids, *, wants_logits: bool
) -> tuple[Evaluation, Floats | None]:
    """Loss over the B (T - 1) next tokens of given rows [B, T], and logits [B, T, V] if wanted.

    Raises:
        BadInput: an id is outside of the vocabulary.
    """
    vocab = loaded.architecture.vocab_size
    if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
        raise BadInput(
            f"ids from {int(ids.min())} to {int(ids.max())}; the model's are 0 to {vocab - 1}"
        )
    length = ids.shape[1]
    positions = np.arange(length, dtype=np.int32)

    def batch_of(wide: Ids) -> Batch:
        rows = wide.astype(np.int32)
        weights = np.ones(rows.shape, np.float32)
        weights[:, -1] = 0.0
        return Batch(
            tokens=rows,
            targets=np.roll(rows, -1, axis=1),
            positions=np.broadcast_to(positions, rows.shape),
            segments=np.ones(rows.shape, np.int32),
            weights=weights,
        )

    def run(params: Params, batch: Batch) -> jax.Array:
        x_BTD, _ = hidden_states(params, batch, loaded.model)
        return logits(x_BTD, output_matrix(params, loaded.model), vocab_size=vocab)

    of_rows = jax.jit(run)
    step = loaded.model.partition.mesh.size * ROWS_AT_ONCE
    batches = (batch_of(ids[first : first + step]) for first in range(0, len(ids), step))
    parts: list[Floats] = []

    def seen(batch: Batch, rows: int) -> None:
        if wants_logits:
            parts.append(np.asarray(of_rows(loaded.params, batch))[:rows])

    evaluation = _over(loaded, batches, seen)
    return evaluation, np.concatenate(parts) if wants_logits else None


def evaluate_data(loaded: Loaded, config: DataConfig, most_batches: int | None) -> Evaluation:
    """Loss over a corpus, once through it in order, or over its first batches."""
    with open_stream(
        replace(config, epochs=1, shuffle=False), loaded.architecture.vocab_size
    ) as stream:
        return _over(loaded, islice(stream, most_batches))


def _over(
    loaded: Loaded, batches: Iterable[Batch], seen: Callable[[Batch, int], None] | None = None
) -> Evaluation:
    model = loaded.model

    def sums(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        loss = evaluate(params, batch, model=model, objective=Objective()).loss
        return loss.nll, loss.weights

    of_batch = jax.jit(sums)
    total, tokens = 0.0, 0.0
    for batch in batches:
        rows = batch.tokens.shape[0]
        whole = _on_devices(_filled(batch, model.partition.mesh.size), model)
        nll, weights = of_batch(loaded.params, whole)
        total, tokens = total + float(nll), tokens + float(weights)
        if seen is not None:
            seen(whole, rows)
    return Evaluation(loss=total / max(tokens, 1.0), tokens=int(tokens))


def _filled(batch: Batch, multiple: int) -> Batch:
    """Rows of padding behind the batch's own, so that they divide over the devices."""
    lacking = -batch.tokens.shape[0] % multiple

    def fill(leaf: Floats) -> Floats:
        return np.pad(leaf, [(0, lacking), (0, 0)])

    return jax.tree.map(fill, batch)


def _on_devices(batch: Batch, model: Model) -> Batch:
    return jax.device_put(batch, model.partition.tokens)
