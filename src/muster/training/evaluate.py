"""Loss of a model on given data or given token ids, and its logits: how a conversion is checked."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from muster.training.data.tokenizer import BYTES, TOKENIZER_FILE
from muster.training.huggingface import import_folder
from muster.training.job import checkpoints_folder
from muster.training.model import Model
from muster.training.params import Params, abstract_params
from muster.training.setup import model_on
from muster.training.step import Objective, evaluate, predict

type Ids = np.ndarray[tuple[int, int], np.dtype[np.integer[Any]]]
type Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
CONFIG = "config.json"
USUAL_LENGTH = 1024  # tokens of a row where nothing says more
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
class Known:
    """What a folder says of its model, before any array of it is read.

    Attributes:
        folder: the folder of a Hugging Face model, or the checkpoints of a run.
        is_run: which of the two.
        tokenizer: that the run was trained with, or that lies beside the model's weights; bytes
            where there is none.
        sequence_length: of the run's rows, else of the model's context, at most 1024.
    """

    folder: Path
    is_run: bool
    architecture: Architecture
    tokenizer: str
    sequence_length: int


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model's arrays on this process's devices, and how to run them.

    Attributes:
        step: of the run's checkpoint; None for a Hugging Face folder.
        damaged: one line for each newer checkpoint that could not be used.
    """

    architecture: Architecture
    params: Params
    model: Model
    step: int | None = None
    damaged: tuple[str, ...] = ()


def look(source: Path, step: int | None = None) -> Known:
    """Look what model a Hugging Face folder, a run's folder or its checkpoints are of.

    Args:
        source: the folder.
        step: of a run's checkpoints; None for the newest.

    Raises:
        BadInput: it is none of these, or does not say.
    """
    if any((source / name).exists() for name in (*WEIGHTS, CONFIG)):
        if step is not None:
            raise BadInput(f"{source} is a Hugging Face folder, which has no step {step}")
        architecture = architecture_from_config(read_config(source), name=source.resolve().name)
        own = source / TOKENIZER_FILE
        options: Mapping[str, Any] = {"tokenizer": str(own)} if own.is_file() else {}
        folder, is_run = source, False
    else:
        folder, is_run = checkpoints_folder(source), True
        with Checkpoints(folder) as checkpoints:
            meta = checkpoints.meta(step)
        architecture = architecture_of(meta, source)
        stated = meta.get("options")
        options = stated if isinstance(stated, Mapping) else {}
    tokenizer, length = options.get("tokenizer"), options.get("sequence_length")
    return Known(
        folder=folder,
        is_run=is_run,
        architecture=architecture,
        tokenizer=tokenizer if isinstance(tokenizer, str) else BYTES,
        sequence_length=length
        if isinstance(length, int) and length > 0
        else min(architecture.context_length or USUAL_LENGTH, USUAL_LENGTH),
    )


def load(known: Known, *, sequence_length: int, dtype: str, step: int | None = None) -> Loaded:
    """Load a model to evaluate it.

    Rows are split over all devices.

    Args:
        known: what `look` found.
        sequence_length: T of what will be evaluated.
        dtype: in which parameters are held and everything is computed.
        step: of a run's checkpoints; None for the newest that is whole.

    Raises:
        BadInput: its weights are not whole.
    """
    architecture = known.architecture
    layout = Layout(fsdp=1, data=jax.local_device_count())
    model = model_on(architecture, layout, sequence_length, compute_dtype=dtype)
    if not known.is_run:
        shardings = model.partition.params(architecture)
        params = import_folder(known.folder, architecture, dtype=dtype, shardings=shardings)
        return Loaded(architecture=architecture, params=params, model=model)
    with Checkpoints(known.folder, vocab_size=architecture.vocab_size) as checkpoints:
        wanted = abstract_params(architecture, model.partition, jnp.dtype(dtype))
        restored = checkpoints.restore(wanted, step=step)
    return Loaded(
        architecture=architecture,
        params=restored.params,
        model=model,
        step=restored.step,
        damaged=restored.damaged,
    )


def architecture_of(meta: Mapping[str, Any], where: Path) -> Architecture:
    """The model that a checkpoint is of.

    Raises:
        BadInput: the checkpoint does not say.
    """
    config, name = meta.get("config"), meta.get("name")
    if not isinstance(config, Mapping) or not isinstance(name, str):
        raise BadInput(f"{where} does not say what model it is of; muster's checkpoints do")
    return architecture_from_config(config, name=name)


def check_ids(ids: Ids, architecture: Architecture) -> None:
    """Refuse token ids that a model does not have.

    Raises:
        BadInput: an id is outside of the vocabulary.
    """
    vocab = architecture.vocab_size
    if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < vocab):
        raise BadInput(
            f"ids from {int(ids.min())} to {int(ids.max())}; the model's are 0 to {vocab - 1}"
        )


def evaluate_ids(
    loaded: Loaded, ids: Ids, *, wants_logits: bool
) -> tuple[Evaluation, Floats | None]:
    """Loss over the B (T - 1) next tokens of given rows [B, T], and logits [B, T, V] if wanted.

    The ids must have passed `check_ids`.
    """
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

    of_rows = jax.jit(partial(predict, model=loaded.model))
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
