"""The book's rules of thumb, with this plan's numbers, and whether each holds.

Source: "How to Scale Your Model", Part 5 ("How to Parallelize a Transformer for Training"), Part 6
("Training LLaMA 3 on TPUs"), Part 12 ("How to Think About GPUs"). The rules take a layer as the
book does, two D x F matrices; `planner.closed_form` uses what the layer really holds.

Legend: B tokens in the batch, T sequence length, F d_ff, n chips, alpha = C / W FLOPs per byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from muster.hardware import Cluster, Loopback, Switched, Torus
from muster.models.architecture import Architecture
from muster.roofline.communication import (
    Widths,
    arithmetic_intensity,
    average_widths,
    book_widths,
    fsdp_bound,
    gpu_fsdp_bound,
    gpu_tensor_bound,
    mixed_bound,
    mixed_bound_without_overlap,
    optimal_split,
    pod_bound,
    tensor_bound,
)
from muster.roofline.links import torus_axes
from muster.roofline.memory import book_memory, fewest_chips
from muster.roofline.workload import Workload
from muster.units import format_bytes

BOOK_CHECKPOINTS = 2


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of thumb; `holds` is None where there is nothing to compare."""

    id: str
    statement: str
    value: float
    bound: float | None = None
    holds: bool | None = None


def rules_of_thumb(
    architecture: Architecture, cluster: Cluster, workload: Workload, parameters: int
) -> tuple[Rule, ...]:
    """Every rule that applies to this kind of cluster.

    Args:
        architecture: the model.
        cluster: where it is to train.
        workload: batch and sequence.
        parameters: trainable parameters.
    """
    widths = average_widths(architecture, book_widths)
    found = [_memory(architecture, cluster, workload, parameters), _sequences(cluster, workload)]
    if widths.active and cluster.slice.chips > 1:
        match cluster.chip.network:
            case Torus() as torus:
                found += _torus(cluster, torus, workload, widths)
            case Switched() as switched:
                found += _switched(cluster, switched, workload, widths)
            case Loopback():
                pass
    return tuple(found)


def _memory(
    architecture: Architecture, cluster: Cluster, workload: Workload, parameters: int
) -> Rule:
    memory = book_memory(
        parameters=parameters,
        D=architecture.d_model,
        L=architecture.num_layers,
        tokens=workload.batch_tokens,
        checkpoints=BOOK_CHECKPOINTS,
    )
    fewest = fewest_chips(memory.total, cluster.chip.hbm_bytes)
    return Rule(
        id="fewest-chips",
        statement=(
            f"{format_bytes(memory.parameters)} of bf16 parameters, "
            f"{format_bytes(memory.optimizer)} of f32 Adam moments and "
            f"{format_bytes(memory.activations)} of activations "
            f"({BOOK_CHECKPOINTS} checkpoints a layer, the batch in one piece) fill {fewest:,} "
            f"{'chip' if fewest == 1 else 'chips'} of "
            f"{format_bytes(cluster.chip.hbm_bytes)}"
        ),
        value=cluster.chips,
        bound=fewest,
        holds=cluster.chips >= fewest,
    )


def _sequences(cluster: Cluster, workload: Workload) -> Rule:
    return Rule(
        id="whole-sequences",
        statement=(
            f"FSDP over whole sequences alone, one chip a sequence, uses at most "
            f"{workload.batch_sequences:,} chips"
        ),
        value=cluster.chips,
        bound=workload.batch_sequences,
        holds=cluster.chips <= workload.batch_sequences,
    )


def _torus(cluster: Cluster, torus: Torus, workload: Workload, widths: Widths) -> Iterator[Rule]:
    alpha = arithmetic_intensity(cluster.chip.bf16_flops, torus.axis_bidi_bandwidth)
    tokens = workload.batch_tokens / cluster.chips
    axes = torus_axes(cluster.slice)
    M = sum(axes) or 1.0
    fsdp = fsdp_bound(alpha, M=M, widths=widths)
    yield _at_least(
        "fsdp",
        f"FSDP over batch and sequence can hide its traffic from {_expert_share(widths)}alpha/M = "
        f"{fsdp:,.0f} tokens a chip (alpha = C/W = {alpha:,.0f} FLOPs a byte, {_axes(axes)})",
        tokens,
        fsdp,
    )
    tensor = tensor_bound(alpha, widths, M=M)
    yield Rule(
        id="tensor",
        statement=(
            f"tensor parallelism alone can hide its traffic up to M*F/alpha = {tensor:,.1f} ways "
            f"({_width(widths)})"
        ),
        value=cluster.slice.chips,
        bound=tensor,
        holds=cluster.slice.chips <= tensor,
    )
    if len(axes) > 1:
        yield from _mixed(cluster, workload, widths, alpha, axes)
    if cluster.slices > 1:
        yield _between_slices(cluster, torus.dcn_bandwidth_per_chip, workload, widths)


def _mixed(
    cluster: Cluster, workload: Workload, widths: Widths, alpha: float, axes: list[float]
) -> Iterator[Rule]:
    M_X, M_Y = sum(axes[1:]), axes[0]
    tokens = workload.batch_tokens / cluster.chips
    mixed = mixed_bound(alpha, widths, M_X=M_X, M_Y=M_Y)
    yield _at_least(
        "fsdp-tensor",
        f"FSDP and tensor parallelism at their best split can hide their traffic from "
        f"{_expert_share(widths)}alpha^2/(M_X*M_Y*F) = {mixed:,.0f} tokens a chip "
        f"(M_X = {M_X:g}, M_Y = {M_Y:g}, {_width(widths)})",
        tokens,
        mixed,
    )
    strict = mixed_bound_without_overlap(alpha, widths, M_X=M_X, M_Y=M_Y)
    yield _at_least(
        "fsdp-tensor-in-turn",
        f"the stricter rule of the book's older edition, where the two kinds of traffic do not "
        f"overlap: {strict:,.0f} tokens a chip",
        tokens,
        strict,
    )
    yield _best_split(cluster, workload, widths, M_X, M_Y)


def _best_split(
    cluster: Cluster, workload: Workload, widths: Widths, M_X: float, M_Y: float
) -> Rule:
    n = cluster.slice.chips
    split = optimal_split(
        B=workload.batch_tokens / cluster.slices, n=n, widths=widths, M_X=M_X, M_Y=M_Y
    )
    each = " in each slice" if cluster.slices > 1 else ""
    line = (
        f"the best split{each} is sqrt(B*n*M_X/({_stored(widths)}*M_Y)) = "
        f"{split.formula:,.0f} FSDP ways"
    )
    if split.formula > n:
        line += f", more than the {n:,} chips: FSDP alone"
    else:
        line += f" x {split.tensor:,.1f} tensor ways"
    return Rule(id="x-opt", statement=line, value=split.formula)


def _switched(
    cluster: Cluster, network: Switched, workload: Workload, widths: Widths
) -> Iterator[Rule]:
    C, chips = cluster.chip.bf16_flops, cluster.slice.chips
    tokens = workload.batch_tokens / cluster.chips
    domains = -(-chips // network.domain_chips)
    if domains > 1:
        # What leaves a domain must also come in over NVLink, so neither is faster than the other.
        egress = min(network.domain_chips * network.scale_out_bandwidth, network.scale_up_bandwidth)
        bound = gpu_fsdp_bound(C, egress, widths=widths, nodes=domains)
        where = f"between domains of {network.domain_chips} GPUs ({egress / 1e9:,.0f} GB/s each)"
        ring = f"{domains - 1}/{domains} x "
    else:
        bound = gpu_fsdp_bound(C, network.scale_up_bandwidth, widths=widths)
        where = f"inside one domain ({network.scale_up_bandwidth / 1e9:,.0f} GB/s a GPU)"
        ring = ""
    yield _at_least(
        "fsdp",
        f"FSDP {where} can hide its traffic from {_expert_share(widths)}{ring}C/W = {bound:,.0f} "
        f"tokens a GPU",
        tokens,
        bound,
    )
    tensor = gpu_tensor_bound(C, network.scale_up_bandwidth, widths)
    most = min(tensor, network.domain_chips)
    yield Rule(
        id="tensor",
        statement=(
            f"tensor parallelism inside the domain of {network.domain_chips} can hide its traffic "
            f"up to F*W/C = {tensor:,.1f} ways ({_width(widths)}), and no further than the domain"
        ),
        value=chips,
        bound=most,
        holds=chips <= most,
    )
    if cluster.slices > 1:
        yield _between_slices(cluster, network.scale_out_bandwidth, workload, widths)


def _between_slices(cluster: Cluster, bandwidth: float, workload: Workload, widths: Widths) -> Rule:
    bound = pod_bound(cluster.chip.bf16_flops, bandwidth, widths=widths)
    return _at_least(
        "dcn",
        f"data parallelism between slices can hide its traffic from {_expert_share(widths)}"
        f"C/W_dcn = {bound:,.0f} tokens a slice",
        workload.batch_tokens / cluster.slices,
        bound,
    )


def _at_least(rule: str, statement: str, value: float, bound: float) -> Rule:
    return Rule(id=rule, statement=statement, value=value, bound=bound, holds=value >= bound)


def _width(widths: Widths) -> str:
    """F, and for experts what it stands for."""
    if widths.stored == widths.active:
        return f"F = {widths.active:,.0f}"
    return f"F = {widths.active:,.0f}, of the experts that a token uses"


def _stored(widths: Widths) -> str:
    return "F" if widths.stored == widths.active else f"{widths.stored:,.0f}"


def _axes(axes: list[float]) -> str:
    lines = sum(share < 1 for share in axes)
    half = f", {lines} of them open ended and counted half" if lines else ""
    return f"M = {sum(axes):g} axes" if not half else f"M = {sum(axes):g}: {len(axes)} axes{half}"


def _expert_share(widths: Widths) -> str:
    """For experts: all of them are gathered, a token uses few."""
    if widths.stored == widths.active:
        return ""
    return f"{widths.stored / widths.active:,.1f} (stored over active experts) x "
