"""When communication bounds a training step: the book's inequalities, for dense models and experts.

One layer's forward pass, bf16 (2 B), with FSDP over X chips and tensor parallelism over Y:

    T_math   = 4 B D F_a / (n C)
    T_fsdp   = 4 D F_t / (Y W M_X)           AllGather of the layer's weights
    T_tensor = 4 g B D / (X W M_Y)           AllGather and ReduceScatter of activations, g blocks

Compute-bound is T_math > max(T_fsdp, T_tensor), both kinds of traffic hidden behind the math and
behind each other. Source: the book's Part 5, "How to Parallelize a Transformer for Training" (its
edition of 2026; sections "Data Parallelism" to "Scaling Across Pods"), and Part 12, "How to Think
About GPUs", "Rooflines for LLM Scaling on GPUs".

The book's layer is two D x F matrices, no gate and no attention, and g = 1: F_t = F_a = F. For a
mixture of experts Part 12 ("Data Parallelism", MoE models) has all E experts in the traffic and k
in the math: F_t = E F_expert + F_shared, F_a = k F_expert + F_shared. `layer_widths` gives the
widths that the real layer amounts to, with gate and attention and g = 2 blocks that gather.

Legend: B tokens in the batch, D d_model, F d_ff, n = X Y chips, C FLOP/s of a chip, W bytes/s of
one torus axis (both directions), alpha = C / W, M torus axes (a line instead of a ring counts
half), X FSDP ways, Y tensor ways.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from muster.models.architecture import Architecture, Experts, Layer
from muster.roofline.remat import layer_weights


@dataclass(frozen=True, kw_only=True)
class Widths:
    """A layer as the bounds see it: two D x F matrices.

    Attributes:
        stored: F_t, the width whose weights are gathered.
        active: F_a, the width that one token is multiplied by.
        gathers: g, blocks of the layer that gather and scatter activations.
    """

    stored: float
    active: float
    gathers: float = 1


def average_widths(
    architecture: Architecture, widths_of: Callable[[Architecture, Layer], Widths]
) -> Widths:
    """The widths of the mean layer, where layers differ (dense and experts in turn, hybrids).

    Times of a whole pass are sums over layers, so the mean layer has the right ratio of traffic to
    math, which the most frequent layer need not have.
    """
    L = architecture.num_layers
    each = [(widths_of(architecture, layer), copies) for layer, copies in architecture.layer_groups]
    return Widths(
        stored=sum(widths.stored * copies for widths, copies in each) / L,
        active=sum(widths.active * copies for widths, copies in each) / L,
        gathers=sum(widths.gathers * copies for widths, copies in each) / L,
    )


def book_widths(architecture: Architecture, layer: Layer) -> Widths:
    """The book's own simplification: F, or the experts' widths; no gate and no attention.

    A gated MLP has three matrices, not two, so its true widths are 1.5 times these and the book's
    bounds are the stricter. Experts that work in a latent of less than D count as that much less.
    """
    mlp = layer.mlp
    if mlp is None:
        return Widths(stored=0.0, active=0.0)
    if not isinstance(mlp, Experts):
        return Widths(stored=mlp.d_ff, active=mlp.d_ff)
    shared = mlp.shared.d_ff if mlp.shared else 0
    each = mlp.d_ff * (mlp.latent or architecture.d_model) / architecture.d_model
    return Widths(
        stored=mlp.num_experts * each + shared,
        active=mlp.experts_per_token * each + shared,
    )


def layer_widths(architecture: Architecture, layer: Layer) -> Widths:
    """Widths at which two D x F matrices hold as many parameters as all of the layer's matmuls."""
    matmuls = [w for w in layer_weights(architecture, layer) if w.role == "matmul"]
    per_width = 2 * architecture.d_model
    return Widths(
        stored=sum(weight.count for weight in matmuls) / per_width,
        active=sum(weight.active_count for weight in matmuls) / per_width,
        gathers=(layer.mixer is not None) + (layer.mlp is not None),
    )


def arithmetic_intensity(C: float, W: float) -> float:
    """Alpha: FLOPs that a chip does while its network moves one byte, C / W.

    >>> arithmetic_intensity(4.59e14, 1.8e11)
    2550.0
    """
    return C / W


def fsdp_bound(alpha: float, *, M: float = 1, widths: Widths | None = None) -> float:
    """Fewest tokens per chip for FSDP or data parallelism: alpha / M, times F_t / F_a.

    From T_math = 4 B D F_a / (X C) and T_comms = 4 D F_t / (W M). Part 5, "Fully-Sharded Data
    Parallelism (FSDP)". Splitting a sequence over chips counts as FSDP here.

    >>> fsdp_bound(2550, M=3)
    850.0
    """
    return alpha / M * (widths.stored / widths.active if widths else 1.0)


def tensor_bound(alpha: float, widths: Widths, *, M: float = 1) -> float:
    """Most tensor-parallel ways: Y < M F_a / (g alpha), whatever the batch.

    From T_math = 4 B D F_a / (Y C) and T_comms = 4 g B D / (W M). Part 5, "Tensor Parallelism".

    >>> round(tensor_bound(2550, Widths(stored=28672, active=28672)), 1)
    11.2
    """
    return M * widths.active / (widths.gathers * alpha)


def mixed_bound(alpha: float, widths: Widths, *, M_X: float = 2, M_Y: float = 1) -> float:
    """Fewest tokens per chip for FSDP and tensor parallelism at their best split.

    alpha^2 g F_t / (M_X M_Y F_a^2), for a dense layer alpha^2 / (M_X M_Y F). At `optimal_split`
    T_fsdp = T_tensor = (4 D / W) sqrt(g B F_t / (n M_X M_Y)), which T_math exceeds from here on.
    Part 5, "Combining FSDP and Tensor Parallelism".

    >>> round(mixed_bound(2550, Widths(stored=28672, active=28672)))
    113
    """
    return alpha**2 * widths.gathers * widths.stored / (M_X * M_Y * widths.active**2)


def mixed_bound_without_overlap(
    alpha: float, widths: Widths, *, M_X: float = 2, M_Y: float = 1
) -> float:
    """The stricter rule of older editions, 2 alpha^2 / F: T_fsdp + T_tensor < T_math.

    The sum of the two is least where they are equal, so it asks for sqrt(B / n) twice as large,
    hence for four times as many tokens.

    >>> round(mixed_bound_without_overlap(2550, Widths(stored=28672, active=28672)))
    454
    """
    return 4 * mixed_bound(alpha, widths, M_X=M_X, M_Y=M_Y)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Ways of FSDP and of tensor parallelism, not yet whole numbers; their product is n.

    Attributes:
        formula: FSDP ways by the formula, where they are more than the chips or fewer than one too.
    """

    fsdp: float
    tensor: float
    formula: float


def optimal_split(*, B: float, n: int, widths: Widths, M_X: float = 2, M_Y: float = 1) -> Split:
    """The split that minimizes max(T_fsdp, T_tensor): X = sqrt(g B n M_X / (F_t M_Y)).

    Part 5, "Combining FSDP and Tensor Parallelism": sqrt((B / F) (M_X / M_Y) n). It is held to
    1 <= X <= n.

    >>> split = optimal_split(B=4 * 1024**2, n=8960, widths=Widths(stored=28672, active=28672))
    >>> round(split.fsdp), round(split.tensor, 2)
    (1619, 5.53)
    """
    best = math.sqrt(widths.gathers * B * n * M_X / (widths.stored * M_Y))
    fsdp = min(max(best, 1.0), float(n))
    return Split(fsdp=fsdp, tensor=n / fsdp, formula=best)


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer's forward pass, by what takes them."""

    math: float
    fsdp: float
    tensor: float

    @property
    def communication(self) -> float:
        """Both kinds of traffic at once: the larger."""
        return max(self.fsdp, self.tensor)

    @property
    def compute_bound(self) -> bool:
        """Whether the math hides the communication."""
        return self.math >= self.communication


def layer_times(
    *,
    B: float,
    D: int,
    widths: Widths,
    X: float,
    Y: float,
    C: float,
    W: float,
    M_X: float = 2,
    M_Y: float = 1,
) -> LayerTimes:
    """The three times at the top of this module, for X-way FSDP and Y-way tensor parallelism.

    One way of a kind sends nothing. Part 5, "Combining FSDP and Tensor Parallelism".

    >>> times = layer_times(B=4 * 1024**2, D=8192, widths=Widths(stored=28672, active=28672),
    ...                     X=2048, Y=4, C=4.59e14, W=1.8e11)
    >>> times.compute_bound, f"{times.math:.2g} {times.fsdp:.2g} {times.tensor:.2g}"
    (True, '0.001 0.00065 0.00037')
    """
    return LayerTimes(
        math=4 * B * D * widths.active / (X * Y * C),
        fsdp=4 * D * widths.stored / (Y * W * M_X) if X > 1 else 0.0,
        tensor=4 * widths.gathers * B * D / (X * W * M_Y) if Y > 1 else 0.0,
    )


def pod_bound(
    C: float, W_dcn_per_chip: float, *, widths: Widths | None = None, pods: int | None = None
) -> float:
    """Fewest tokens per pod for data parallelism between pods: C / W_dcn, times F_t / F_a.

    From T_math = 8 B D F_a / (n C) and T_comms = 8 D F_t / (M W_dcn), M chips of a pod. Part 5,
    "Scaling Across Pods".

    Args:
        C: FLOP/s of one chip.
        W_dcn_per_chip: bytes/s out of one chip's share of its host's network cards.
        widths: of a layer, for a mixture of experts.
        pods: where it is given, a ring of so few sends only (pods - 1) / pods of the bytes.

    >>> pod_bound(4.59e14, 6.25e9)
    73440.0
    """
    return fsdp_bound(C / W_dcn_per_chip, widths=widths) * _ring_share(pods)


def gpu_fsdp_bound(
    C: float, W_collective: float, *, widths: Widths | None = None, nodes: int | None = None
) -> float:
    """Fewest tokens per GPU for FSDP or data parallelism: C / W, times F_t / F_a.

    Part 12, "Rooflines for LLM Scaling on GPUs", "Data Parallelism".

    Args:
        C: dense FLOP/s of one GPU.
        W_collective: bytes/s out of one *node* between nodes (8 x 50e9 for H100), out of one GPU
            inside an NVLink domain.
        widths: of a layer, for a mixture of experts.
        nodes: where it is given, so few nodes send only (nodes - 1) / nodes of the bytes.

    >>> gpu_fsdp_bound(990e12, 8 * 50e9), gpu_fsdp_bound(990e12, 450e9)
    (2475.0, 2200.0)
    >>> gpu_fsdp_bound(990e12, 8 * 50e9, nodes=2)
    1237.5
    """
    return fsdp_bound(C / W_collective, widths=widths) * _ring_share(nodes)


def gpu_tensor_bound(C: float, W_nvlink: float, widths: Widths) -> float:
    """Most tensor-parallel ways in an NVLink domain: Y < F W / C.

    Part 12, "Rooflines for LLM Scaling on GPUs", "Tensor Parallelism".

    >>> round(gpu_tensor_bound(990e12, 450e9, Widths(stored=28672, active=28672)))
    13
    """
    return tensor_bound(C / W_nvlink, widths)


def _ring_share(ways: int | None) -> float:
    return 1.0 if ways is None else (ways - 1) / ways
