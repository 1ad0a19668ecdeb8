"""AdamW with warmup, a schedule, a decay mask and clipping by the global norm; optax does the math.

The update is computed in float32 whatever the formats that parameters and moments are kept in.
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from muster.errors import BadInput
from muster.training.params import Params

type Rates = np.ndarray[tuple[int], np.dtype[np.float32]]
type Schedule = Literal["cosine", "linear", "constant"]
SCHEDULES: tuple[Schedule, ...] = ("cosine", "linear", "constant")
# Never decayed: vectors (norm scales, biases). Chosen by name, since stacking adds a dim.
UNDECAYED = ("norm", ".bias")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule; defaults are LLaMA's (arXiv:2302.13971, section 2.3).

    Attributes:
        learning_rate: at its highest.
        warmup_steps: over which it rises linearly from 0.
        schedule: how it falls to `final_share` of the highest by `total_steps`.
        weight_decay: of matrices; norms and biases are not decayed.
        clip_norm: global norm above which gradients are scaled down; 0 for never.
        moments_dtype: format in which both moments are kept.
    """

    total_steps: int
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    schedule: Schedule = "cosine"
    final_share: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    moments_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse numbers that no run could use."""
        if self.schedule not in SCHEDULES:
            raise BadInput(f"schedule {self.schedule!r}; choose from {', '.join(SCHEDULES)}")
        if not 0 <= self.learning_rate < 1e3:
            raise BadInput(f"learning rate {self.learning_rate:g}; usual are 1e-5 to 1e-2")
        if not self.warmup_steps >= 0:
            raise BadInput(f"{self.warmup_steps} warmup steps; it must not be negative")
        if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1):
            raise BadInput(f"Adam's b1 {self.b1:g} and b2 {self.b2:g} must lie in [0, 1)")
        if not 0 <= self.weight_decay < math.inf:
            raise BadInput(f"weight decay {self.weight_decay:g}; it must be at least 0")
        if not self.clip_norm >= 0:
            raise BadInput(f"clipping norm {self.clip_norm:g}; it must be at least 0")


def learning_rate(config: OptimizerConfig) -> optax.Schedule:
    """The learning rate of each step, the first of which is step 0."""
    peak, warmup = config.learning_rate, config.warmup_steps
    falling = max(config.total_steps - warmup, 1)
    last = peak * config.final_share
    after: optax.Schedule = {
        "cosine": optax.cosine_decay_schedule(peak, falling, alpha=config.final_share),
        "linear": optax.linear_schedule(peak, last, falling),
        "constant": optax.constant_schedule(peak),
    }[config.schedule]
    if not warmup:
        return after
    # Step 0 already learns: the rise reaches the peak at the last step of warmup.
    rising = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rising, after], [warmup])


def learning_rates(config: OptimizerConfig) -> Rates:
    """The learning rate of every step, float32 [steps]."""
    steps = jnp.arange(max(config.total_steps, 1))
    return np.asarray(jax.jit(jax.vmap(learning_rate(config)))(steps), np.float32)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """What is to be taken off the parameters at a learning rate of 1: clip, Adam, decay.

    Its state is kept in `moments_dtype`. The rate is an argument of the step, so that the program
    is the same whatever the schedule: what was compiled before a run is what runs.
    """
    steps = [
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps),
        optax.add_decayed_weights(config.weight_decay, mask=decayed),
    ]
    if config.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(config.clip_norm))
    return _kept_in(optax.chain(*steps), jnp.dtype(config.moments_dtype))


def decayed(params: Params) -> dict[str, bool]:
    """Which parameters weight decay pulls towards zero: all matrices."""
    return {name: not any(word in name for word in UNDECAYED) for name in params}


def _kept_in(inner: optax.GradientTransformation, dtype: jnp.dtype) -> optax.GradientTransformation:
    """Compute in float32, keep the state's arrays in `dtype`."""

    def init(params: optax.Params) -> optax.OptState:
        return _floats_as(inner.init(_floats_as(params, jnp.dtype(jnp.float32))), dtype)

    def update(
        gradients: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        wide = jnp.dtype(jnp.float32)
        updates, new = inner.update(
            _floats_as(gradients, wide), _floats_as(state, wide), _floats_as(params, wide)
        )
        return updates, _floats_as(new, dtype)

    return optax.GradientTransformation(init, update)


def _floats_as[Tree](tree: Tree, dtype: jnp.dtype) -> Tree:
    def cast(leaf: jax.Array) -> jax.Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    cast_tree: Tree = jax.tree.map(cast, tree)
    return cast_tree
