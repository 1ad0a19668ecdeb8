"""Cross-entropy over a vocabulary whose logits are never held whole.

    -log p(y) = m + log sum_v exp(l_v - m) - l_y,    l = x W,    m = max_v l_v
    d(-log p)/dl = p - onehot(y)
    z = (log sum_v exp l_v)^2, which keeps the softmax's normalizer near 1 (PaLM, section 5)

Everything here runs on one chip: it takes its tokens in chunks and its slice of the vocabulary.
When the loss is being differentiated, a chunk's gradients are computed while its logits exist, so
that x W is done once: three matmuls in all. The weights' gradient is summed over chunks in float32
and reduced between chips once.

Letters, all of one chip: B sequences, T their tokens, D d_model, V its words, M its tokens, C those
of a chunk; Y chips of `tensor`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from muster.roofline.loss_chunks import LEAST_BYTES
from muster.training.exchange import sum_over_tokens
from muster.training.partition import Partition
from muster.training.parts import ranges

# Float32 logits of a chunk on CPUs: within the last level of cache, as the softmax reads them three
# times.
CPU_CHUNK_BYTES = 64 * 2**20
LOWEST = float(np.finfo(np.float32).min)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class LossSums:
    """Sums over all tokens of all chips, float32 scalars.

    Attributes:
        total: sum of w (-log p + z_loss z); the one that gradients flow through.
        nll: sum of w (-log p).
        z: sum of w z.
        weights: sum of w; divide by it for means.
        correct: sum of w where no word is likelier than the target.
    """

    total: jax.Array
    nll: jax.Array
    z: jax.Array
    weights: jax.Array
    correct: jax.Array


# x and the head as a chip holds them, to x of its tokens and the head of its words.
type Gather = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def _as_they_are(x: jax.Array, head: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, head


def cross_entropy(
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
    *,
    place: Partition,
    vocab_size: int,
    z_loss: float = 0.0,
    chunk_tokens: int | None = None,
    gather: Gather = _as_they_are,
) -> LossSums:
    """The weighted cross-entropy of next-token predictions, as sums over the tokens of all chips.

    Matmuls take both factors in x's dtype and accumulate in float32; everything between is float32.
    Gradients flow from `total` to x and to the head, never to the weights; what comes back for x is
    this chip's words' part.

    Args:
        x_BTD: what `gather` makes the last block's normalized output from.
        head_DV: what `gather` makes the head from, in any float dtype. Its gradient is summed over
            chunks in float32. Words from `vocab_size` on have no probability.
        targets_BT: int32 ids below `vocab_size`.
        weights_BT: float32; 0 leaves a token out.
        place: the mesh.
        vocab_size: words that can be predicted, at most those of all chips.
        z_loss: what the squared log-normalizer is multiplied by.
        chunk_tokens: at most so many tokens of a chip at once; by default such that their logits
            take `LEAST_BYTES`, or `CPU_CHUNK_BYTES`.
        gather: gives x of all tokens that the chips of `tensor` share, [B, T, D], and the head
            whole in D, V split over `tensor`. Gradients go back through it while the loss is
            computed, so that no whole gradient of the head waits for the backward pass.
    """
    assert targets_BT.shape == weights_BT.shape
    how = _Softmax(
        place=place,
        vocab_size=vocab_size,
        z_loss=z_loss,
        chunk_tokens=chunk_tokens,
        gather=gather,
    )
    return _cross_entropy(how, x_BTD, head_DV, targets_BT, weights_BT)


def logits(x_BTD: jax.Array, head_DV: jax.Array) -> jax.Array:
    """Whole float32 logits [B, T, V] of a chip's words, for evaluation on few tokens."""
    return _matmul("btd,dv->btv", x_BTD, head_DV.astype(x_BTD.dtype))


@dataclass(frozen=True, kw_only=True)
class _Softmax:
    """What is static about one loss."""

    place: Partition
    vocab_size: int
    z_loss: float
    chunk_tokens: int | None
    gather: Gather

    @property
    def tensor(self) -> int:
        return self.place.layout.tensor

    @property
    def on_cpu(self) -> bool:
        return self.place.on_cpu


class _Gradients(NamedTuple):
    """Of `total`."""

    x: Any
    head: Any


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross_entropy(
    how: _Softmax,
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
) -> LossSums:
    x, head = how.gather(x_BTD, head_DV)
    sums, _ = _sums(how, False, x, head, targets_BT, weights_BT)
    return sums


def _forward(
    how: _Softmax,
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
) -> tuple[LossSums, _Gradients]:
    (x, head), scatter = jax.vjp(how.gather, x_BTD, head_DV)
    sums, gradients = _sums(how, True, x, head, targets_BT, weights_BT)
    assert gradients is not None
    dx, dhead = gradients
    whole = jnp.concatenate([part.astype(head.dtype) for part in dhead], axis=1)
    return sums, _Gradients(*scatter((dx, whole)))


def _backward(
    _how: _Softmax, saved: _Gradients, cotangent: LossSums
) -> tuple[jax.Array, jax.Array, None, None]:
    scale = cotangent.total.astype(jnp.float32)
    dx, dhead = (
        (each.astype(jnp.float32) * scale).astype(each.dtype) for each in (saved.x, saved.head)
    )
    return dx, dhead, None, None


_cross_entropy.defvjp(_forward, _backward)


def _sums(
    how: _Softmax,
    with_gradients: bool,
    x_BTD: jax.Array,
    head_DV: jax.Array,
    targets_BT: jax.Array,
    weights_BT: jax.Array,
) -> tuple[LossSums, tuple[jax.Array, list[jax.Array]] | None]:
    """The sums of all chips; gradients of this one's tokens and words, the head's in float32.

    The head's is in the parts in which it is scattered: cut afterwards, it would be copied.
    """
    assert x_BTD.shape == (*targets_BT.shape, head_DV.shape[0])
    assert how.vocab_size <= head_DV.shape[1] * how.tensor
    head_DV = head_DV.astype(x_BTD.dtype)
    d_model, words = head_DV.shape
    chunks = _chunks(how, words, x_BTD.reshape(-1, d_model), targets_BT, weights_BT)

    widths = how.place.parts(head_DV.shape) if with_gradients else ()

    def of_chunk(chunk: _Chunk) -> tuple[jax.Array, list[jax.Array], jax.Array | None]:
        """Sums, the head's gradient in float32, that of x."""
        sums, dlogits_CV = _chunk_loss(how, with_gradients, chunk, head_DV)
        if dlogits_CV is None:
            return sums, [], None
        dx_CD = _matmul("cv,dv->cd", dlogits_CV, head_DV).astype(x_BTD.dtype)
        parts = (dlogits_CV[:, part] for part in ranges(widths))
        return sums, [_head_gradient(chunk, part) for part in parts], dx_CD

    def step(
        carry: tuple[jax.Array, list[jax.Array]], chunk: _Chunk
    ) -> tuple[tuple[jax.Array, list[jax.Array]], jax.Array | None]:
        sums, dhead, dx_CD = of_chunk(chunk)
        return jax.tree.map(jnp.add, carry, (sums, dhead)), dx_CD

    if len(chunks.targets) == 1:
        sums, dhead, dx = of_chunk(jax.tree.map(lambda leaf: leaf[0], chunks))
    else:
        nothing = [jnp.zeros((d_model, width), jnp.float32) for width in widths]
        (sums, dhead), dx = lax.scan(step, (jnp.zeros(4), nothing), chunks)
    nll, z, weights, correct = sum_over_tokens(sums, how.place)
    loss = LossSums(total=nll + how.z_loss * z, nll=nll, z=z, weights=weights, correct=correct)
    if dx is None:
        return loss, None
    dx_BTD = dx.reshape(-1, d_model)[: targets_BT.size].reshape(x_BTD.shape)
    return loss, (dx_BTD, dhead)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Some tokens of a chip; `xT` holds x transposed, or None where nothing is gained by it."""

    x: jax.Array
    xT: jax.Array | None
    targets: jax.Array
    weights: jax.Array


def _chunks(
    how: _Softmax, words: int, x_MD: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array
) -> _Chunk:
    """A chip's tokens in chunks of equal size, stacked; the last padded with weightless ones."""
    tokens, d_model = x_MD.shape
    chunk_bytes = CPU_CHUNK_BYTES if how.on_cpu else LEAST_BYTES
    most = how.chunk_tokens or max(1, chunk_bytes // (4 * words))
    number = -(-tokens // most)
    size = -(-tokens // number)
    padding = number * size - tokens
    x_nCD = jnp.pad(x_MD, ((0, padding), (0, 0))).reshape(number, size, d_model)
    # XLA's matmul for CPUs is up to four times slower where it contracts the first dim of its left
    # factor (bfloat16, 256 x 32000: 95 against 430 GFLOP/s). The barrier keeps XLA from undoing it.
    x_nDC = lax.optimization_barrier(x_nCD.swapaxes(1, 2)) if how.on_cpu else None
    return _Chunk(
        x=x_nCD,
        xT=x_nDC,
        targets=jnp.pad(targets_BT.reshape(-1), (0, padding)).reshape(number, size),
        weights=jnp.pad(weights_BT.reshape(-1), (0, padding)).reshape(number, size),
    )


def _chunk_loss(
    how: _Softmax, with_gradients: bool, chunk: _Chunk, head_DV: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Sums [4] of (nll, z, weights, correct), and `total`'s gradient by this chip's logits."""
    words = head_DV.shape[1]
    first = lax.axis_index("tensor") * words if how.tensor > 1 else 0
    logits_CV = _matmul("cd,dv->cv", chunk.x, head_DV)
    word_CV = lax.broadcasted_iota(jnp.int32, logits_CV.shape, 1)
    if how.vocab_size < words * how.tensor:
        logits_CV = jnp.where(word_CV + first < how.vocab_size, logits_CV, -jnp.inf)

    own_C = chunk.targets - first  # of this chip's words, or outside [0, words)
    max_C, norm_C, target_C = _softmax_parts(how, logits_CV, own_C)
    log_norm_C = max_C + jnp.log(norm_C)
    w_C = chunk.weights.astype(jnp.float32)
    terms = (log_norm_C - target_C, log_norm_C**2, jnp.ones_like(w_C), target_C >= max_C)
    sums = jnp.stack([jnp.sum(w_C * term) for term in terms])
    if not with_gradients:
        return sums, None
    # total = w (log_norm - target + z_loss log_norm^2), and d log_norm / dl = p
    slope_C = w_C * (1 + 2 * how.z_loss * log_norm_C)
    p_CV = jnp.exp(logits_CV - log_norm_C[:, None])
    dlogits_CV = slope_C[:, None] * p_CV - jnp.where(word_CV == own_C[:, None], w_C[:, None], 0.0)
    dlogits_CV = dlogits_CV.astype(chunk.x.dtype)
    # Written once for both matmuls: else XLA fuses the exponential into each, and on v5p a tenth of
    # the loss's cycles is lost. On CPUs it never does.
    return sums, dlogits_CV if how.on_cpu else lax.optimization_barrier(dlogits_CV)


def _head_gradient(chunk: _Chunk, dlogits_CV: jax.Array) -> jax.Array:
    if chunk.xT is None:
        return _matmul("cd,cv->dv", chunk.x, dlogits_CV)
    return _matmul("dc,cv->dv", chunk.xT, dlogits_CV)


def _softmax_parts(
    how: _Softmax, logits_CV: jax.Array, own_C: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Max, sum of exp(l - max) and the target's logit, over all words of all chips."""
    words = logits_CV.shape[1]
    max_C = jnp.max(logits_CV, axis=1)
    # A chip whose words are all padding has no maximum, and adds nothing.
    finite_C = jnp.maximum(max_C, LOWEST)
    norm_C = jnp.sum(jnp.exp(logits_CV - finite_C[:, None]), axis=1)
    column_C = jnp.clip(own_C, 0, words - 1)
    if how.on_cpu:
        target_C = jnp.take_along_axis(logits_CV, column_C[:, None], axis=1)[:, 0]
    else:  # summed with the exponentials, in one reading; accelerators gather slowly
        word_CV = lax.broadcasted_iota(jnp.int32, logits_CV.shape, 1)
        target_C = jnp.sum(jnp.where(word_CV == column_C[:, None], logits_CV, 0.0), axis=1)
    target_C = jnp.where(own_C == column_C, target_C, -jnp.inf)
    if how.tensor == 1:
        return finite_C, norm_C, target_C
    # One small collective a chunk instead of a maximum and then sums that wait for it.
    parts_Y3C = lax.all_gather(jnp.stack([finite_C, norm_C, target_C]), "tensor")
    max_YC, norm_YC, target_YC = parts_Y3C[:, 0], parts_Y3C[:, 1], parts_Y3C[:, 2]
    max_C = jnp.max(max_YC, axis=0)
    norm_C = jnp.sum(norm_YC * jnp.exp(max_YC - max_C), axis=0)
    return max_C, norm_C, jnp.max(target_YC, axis=0)


def _matmul(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
