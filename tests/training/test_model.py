"""Gradients of the whole model: equal to the plain one's, causal, and within each document."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muster.sharding.mesh import Layout
from muster.training.batch import Batch
from muster.training.model import rms_norm
from muster.training.partition import Partition
from muster.training.setup import make_model
from muster.training.step import Objective, gradients_of
from tests.training import naive, tiny

ONE = Layout()
SEQUENCE = Layout(fsdp=2, sequence=2, tensor=2)
EXPERTS = Layout(sequence=2, expert=2, fsdp=2)
UNEVEN = Layout(data=2, tensor=4)  # of V = 254
VARIANTS: Mapping[str, dict[str, Any]] = {
    "dense": {},
    "tied": {"tie_word_embeddings": True},
    "window": {"model_type": "mistral", "sliding_window": 5},
    "experts": tiny.EXPERTS,
    "uneven vocabulary": {"vocab_size": 254},
}
CASES = [
    ("dense", SEQUENCE),
    ("tied", SEQUENCE),
    ("experts", EXPERTS),
    ("uneven vocabulary", UNEVEN),
]


@cache
def differentiated(variant: str, layout: Layout) -> tuple[Partition, Callable[..., Any]]:
    """The compiled gradients of a variant in a layout, of loss and of nothing else."""
    plan = tiny.planned(tiny.architecture(**VARIANTS[variant]), layout)
    model = make_model(plan)
    place = model.partition
    params = placed(variant, place)
    run = jax.jit(
        partial(gradients_of, model=model, objective=Objective()),
        out_shardings=(place.params(model.architecture), None),
    )
    return place, run.lower(params, tiny.on(place, tiny.packed(0))).compile(tiny.QUICKLY)


def placed(variant: str, place: Partition) -> dict[str, jax.Array]:
    model = tiny.architecture(**VARIANTS[variant])
    return jax.device_put(tiny.numbers(model, place), place.params(model))


def gradients(variant: str, layout: Layout, batch: Batch) -> dict[str, tiny.Array]:
    place, run = differentiated(variant, layout)
    found, _ = run(placed(variant, place), tiny.on(place, batch))
    return {name: np.asarray(array) for name, array in found.items()}


@pytest.mark.parametrize(("variant", "layout"), CASES, ids=str)
def test_gradients_equal_the_plain_models(variant: str, layout: Layout) -> None:
    config = tiny.CONFIG | VARIANTS[variant] | {"router_aux_loss_coef": 0.0}
    vocab = config["vocab_size"]
    batch = tiny.packed(3, vocab=vocab)
    place, _ = differentiated(variant, layout)
    drawn = tiny.numbers(tiny.architecture(**VARIANTS[variant]), place)
    params = {name: jnp.asarray(array) for name, array in drawn.items()}
    wanted = jax.grad(naive.loss)(params, batch, config)
    found = gradients(variant, layout, batch)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = float(np.abs(gradient).max())
        np.testing.assert_allclose(
            found[name] / scale, np.asarray(gradient) / scale, atol=3e-6, rtol=0, err_msg=name
        )


def test_rows_beyond_the_vocabulary_get_no_gradient() -> None:
    found = gradients("uneven vocabulary", UNEVEN, tiny.packed(4, vocab=254))
    assert found["embedding"].shape == (256, 32)
    assert not found["embedding"][254:].any()
    assert not found["head"][:, 254:].any()


def one_target_a_row(batch: Batch, places: tiny.Array) -> Batch:
    """The batch with every token another one, and one target in each row."""
    tokens = np.random.default_rng(0).permutation(tiny.V).reshape(tiny.B, tiny.T)
    weights = np.zeros((tiny.B, tiny.T), np.float32)
    weights[np.arange(tiny.B), places] = 1
    return replace(
        batch,
        tokens=tokens.astype(np.int32),
        targets=np.roll(tokens, -1, 1).astype(np.int32),
        weights=weights,
    )


@pytest.mark.parametrize(
    ("variant", "layout"),
    [("dense", ONE), ("dense", SEQUENCE), ("window", ONE), ("window", SEQUENCE),
     ("experts", EXPERTS)],
    ids=str,
)  # fmt: skip
def test_a_loss_reads_its_own_document_and_nothing_later(variant: str, layout: Layout) -> None:
    """As many tokens as words, so that each row of the embedding is one token's own."""
    two_documents = tiny.packed(5)
    assert {len(set(row)) for row in np.asarray(two_documents.segments).tolist()} >= {3}
    reach = 2 * (5 - 1) if variant == "window" else tiny.T  # of two layers
    # Of each token, which tokens of its row its loss may read.
    may_read = naive.visible_keys(two_documents, reach + 1)
    real = np.asarray(two_documents.segments) > 0
    for shift in range(0, tiny.T, 5):
        places = (np.arange(tiny.B) * 4 + shift) % tiny.T
        batch = one_target_a_row(two_documents, places)
        by_token = np.abs(gradients(variant, layout, batch)["embedding"]).max(axis=-1)
        reads = by_token[np.asarray(batch.tokens)] > 0
        rows = np.arange(tiny.B)
        counted = real[rows, places]  # padding's own loss is nobody's business
        np.testing.assert_array_equal(
            reads[counted], may_read[rows, places][counted], f"targets at {places}"
        )


def test_positions_restart_in_every_document() -> None:
    """Two documents in a row have the gradients that they have in rows of their own."""
    draw = np.random.default_rng(7)
    first, second = draw.integers(0, tiny.V, 10), draw.integers(0, tiny.V, tiny.T - 10)
    together, apart = np.zeros((tiny.B, tiny.T), int), np.zeros((tiny.B, tiny.T), int)
    together[0], apart[0, :10], apart[1, : tiny.T - 10] = [*first, *second], first, second
    one = rows(together, [[10, tiny.T - 10]])
    other = rows(apart, [[10], [tiny.T - 10]])
    found, wanted = (gradients("dense", SEQUENCE, batch) for batch in (one, other))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-7, err_msg=name)


def rows(ids: tiny.Array, lengths: list[list[int]]) -> Batch:
    """Rows of documents of given lengths; the other rows are padding."""
    segments, positions = np.zeros(ids.shape, np.int32), np.zeros(ids.shape, np.int32)
    weights = np.zeros(ids.shape, np.float32)
    for row, of_row in enumerate(lengths):
        first = 0
        for number, length in enumerate(of_row, 1):
            own = slice(first, first + length)
            segments[row, own], positions[row, own] = number, np.arange(length)
            weights[row, first : first + length - 1] = 1
            first += length
    return replace(tiny.whole_rows(ids), segments=segments, positions=positions, weights=weights)


def test_rms_norm_in_bfloat16_sums_in_float32() -> None:
    x = np.full((1, 4096), 3.0, np.float32)
    x[0, 0] = 5.0
    found = rms_norm(jnp.asarray(x, jnp.bfloat16), jnp.ones(4096, jnp.bfloat16), 0.0)
    assert found.dtype == jnp.bfloat16
    assert float(found[0, 0]) == pytest.approx(5 / np.sqrt(9 + 16 / 4096), rel=2**-8)
