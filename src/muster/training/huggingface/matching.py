"""Does a folder hold exactly the tensors of a model? Whatever does not match is named."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from muster.errors import BadInput
from muster.models.architecture import Architecture
from muster.models.hf_config import printable
from muster.sharding.hf_names import BUFFERS, FUSED_GATE_AND_UP, HEAD, HfTensor, hf_tensors
from muster.training.huggingface.dtypes import DTYPES
from muster.training.huggingface.folder import StoredTensor

MOST_NAMED = 3
EMBEDDING = "model.embed_tokens.weight"
BLOCK_BYTES = 8 * 2**20  # read at a time: far below a large tensor, far above a read's own cost


def matched_tensors(
    stored: Mapping[str, StoredTensor], architecture: Architecture, folder: Path
) -> tuple[HfTensor, ...]:
    """The tensors of a model, all of which `stored` holds, in the shape that they must have.

    A tied head that is stored a second time must equal the embedding.

    Raises:
        BadInput: tensors are missing, unknown, of another shape, or of an unreadable format.
    """
    fused = any(name.endswith(FUSED_GATE_AND_UP) for name in stored)
    tensors = hf_tensors(architecture, fused=fused)
    expected = {tensor.name(place): tensor.shape for tensor in tensors for place in tensor.places()}
    twin = HEAD if architecture.tied_embeddings and HEAD in stored else None
    if twin:
        expected[twin] = expected[EMBEDDING]
    faults = (
        _named("missing", [name for name in expected if name not in stored]),
        _named("not of this model", [name for name in stored if not _known(name, expected)]),
        _named("of another shape", _other_shapes(stored, expected)),
        _named("of a format that is not read", _other_formats(stored, expected)),
    )
    if any(faults):
        raise BadInput(
            f"{printable(folder)} does not hold {architecture.name}: "
            + "; ".join(fault for fault in faults if fault)
        )
    if twin and not _equal(stored[EMBEDDING], stored[twin]):
        raise BadInput(
            f"{printable(folder)}: {twin} differs from {EMBEDDING}, but the config ties them "
            "(tie_word_embeddings)"
        )
    return tensors


def _known(name: str, expected: Mapping[str, object]) -> bool:
    return name in expected or name.endswith(BUFFERS)


def _other_shapes(
    stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]
) -> list[str]:
    return [
        f"{name} is {list(stored[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]


def _other_formats(stored: Mapping[str, StoredTensor], expected: Mapping[str, object]) -> list[str]:
    return [
        f"{name} is {stored[name].code}, not {', '.join(DTYPES)}"
        for name in expected
        if name in stored and stored[name].code not in DTYPES
    ]


def _named(what: str, cases: list[str]) -> str:
    """E.g. `5 tensors missing (a, b, c, ...)`; nothing where there are none."""
    if not cases:
        return ""
    more = ", ..." if len(cases) > MOST_NAMED else ""
    number = f"{len(cases):,} tensor{'s' if len(cases) > 1 else ''}"
    return f"{number} {what} ({', '.join(cases[:MOST_NAMED])}{more})"


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two matrices hold the same numbers, compared a few rows at a time."""
    rows, columns = one.shape
    step = max(1, BLOCK_BYTES // (4 * columns))
    for start in range(0, rows, step):
        region = (slice(start, min(start + step, rows)), slice(0, columns))
        a, b = (tensor.read(region).astype(np.float32) for tensor in (one, other))
        if not np.array_equal(a, b, equal_nan=True):
            return False
    return True
