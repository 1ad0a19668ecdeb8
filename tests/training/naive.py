"""The LLaMA family written out plainly, one layer and one token row at a time, to compare with.

No scan, no sharding, no chunks: every score and every logit exists at once. Experts are all
computed for every token and weighed by the router's choice.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muster.training.batch import Batch

type Weights = dict[str, jax.Array]
type Config = dict[str, Any]


def loss(weights: Weights, batch: Batch, config: Config) -> jax.Array:
    """Mean cross-entropy over the tokens that count, and the routers' balance loss."""
    logits, balance = logits_and_balance(weights, batch, config)
    return mean_loss(logits, batch) + config.get("router_aux_loss_coef", 0.0) * balance


def mean_loss(logits: jax.Array, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the tokens that count."""
    log_p = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.take_along_axis(log_p, jnp.asarray(batch.targets)[..., None], axis=-1)[..., 0]
    return -jnp.sum(picked * batch.weights) / jnp.sum(jnp.asarray(batch.weights))


def logits_and_balance(
    weights: Weights, batch: Batch, config: Config
) -> tuple[jax.Array, jax.Array]:
    """Logits [B, T, V], and the routers' balance losses averaged over layers."""
    x = weights["embedding"][batch.tokens]
    balances = []
    eps = config["rms_norm_eps"]
    for layer in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix("layers."): array[layer]
            for name, array in weights.items()
            if name.startswith("layers.")
        }
        x = x + _attention(own, _norm(x, own["norm_0"], eps), batch, config)
        inner = _norm(x, own["norm_1"], eps)
        if "router" in own:
            out, balance = _experts(own, inner, batch, config)
            balances.append(balance)
        else:
            out = (jax.nn.silu(inner @ own["mlp.gate"]) * (inner @ own["mlp.up"])) @ own[
                "mlp.down"
            ].T
        x = x + out
    x = _norm(x, weights["final_norm"], eps)
    head = weights["head"] if "head" in weights else weights["embedding"].T
    balance = jnp.mean(jnp.stack(balances)) if balances else jnp.zeros(())
    return (x @ head)[..., : config["vocab_size"]], balance


def _norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    return x * scale / jnp.sqrt((x**2).mean(-1, keepdims=True) + eps)


def _attention(own: Weights, x: jax.Array, batch: Batch, config: Config) -> jax.Array:
    q = jnp.einsum("btd,dnh->bnth", x, own["attention.query"])
    k = jnp.einsum("btd,dnh->bnth", x, own["attention.key"])
    v = jnp.einsum("btd,dnh->bnth", x, own["attention.value"])
    if "attention.query.bias" in own:
        q = q + own["attention.query.bias"][None, :, None]
        k = k + own["attention.key.bias"][None, :, None]
        v = v + own["attention.value.bias"][None, :, None]
    if "attention.query_norm" in own:
        q = _norm(q, own["attention.query_norm"], config["rms_norm_eps"])
        k = _norm(k, own["attention.key_norm"], config["rms_norm_eps"])
    q, k = (_turned(each, batch, config["rope_theta"]) for each in (q, k))
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    scores = jnp.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(q.shape[-1])
    visible = jnp.asarray(visible_keys(batch, config.get("sliding_window")))
    share = jax.nn.softmax(jnp.where(visible[:, None], scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bnts,bnsh->bnth", share, v)
    return jnp.einsum("bnth,dnh->btd", mixed, own["attention.output"])


def visible_keys(batch: Batch, window: int | None) -> np.ndarray[Any, Any]:
    """[B, T, S]: keys of the same document, not later, and within the window."""
    segments = np.asarray(batch.segments)
    place = np.arange(segments.shape[1])
    back = place[:, None] - place[None, :]
    causal = (back >= 0) & (back < (window or segments.shape[1]))
    return (segments[:, :, None] == segments[:, None, :]) & causal


def _turned(x: jax.Array, batch: Batch, theta: float) -> jax.Array:
    """Rotary embedding as a multiplication of complex numbers: x_i + j x_(i + H/2)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    turn = np.exp(1j * np.asarray(batch.positions)[:, None, :, None] * frequencies)
    turned = jax.lax.complex(x[..., :half], x[..., half:]) * turn.astype(np.complex64)
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def _experts(
    own: Weights, x: jax.Array, batch: Batch, config: Config
) -> tuple[jax.Array, jax.Array]:
    chosen = config["num_experts_per_tok"]
    p = jax.nn.softmax(x @ own["router"], axis=-1)  # [B, T, E]
    threshold = jnp.sort(p, axis=-1)[..., -chosen, None]
    picked = p >= threshold
    share = jnp.where(picked, p, 0.0)
    if config["model_type"] == "mixtral" or config.get("norm_topk_prob", False):
        share = share / share.sum(-1, keepdims=True)
    gate = jnp.einsum("btd,edf->btef", x, own["experts.gate"])
    up = jnp.einsum("btd,edf->btef", x, own["experts.up"])
    out = jnp.einsum("btef,efd->bted", jax.nn.silu(gate) * up, own["experts.down"])
    real = jnp.asarray(batch.segments) > 0
    count = real.sum()
    load = (picked * real[..., None]).sum((0, 1)) / count / chosen
    mean = (p * real[..., None]).sum((0, 1)) / count
    # Padding takes no expert; what it would compute is read by nobody.
    share = share * real[..., None]
    return jnp.einsum("bte,bted->btd", share, out), p.shape[-1] * (load * mean).sum()
