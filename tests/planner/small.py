"""Small models, clusters and workloads, and what makes a layout legal, written a second time."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from muster.hardware import Chip, Cluster, Loopback, Switched, Torus, parse_cluster, slice_of
from muster.hardware.shapes import is_legal
from muster.models.architecture import Architecture, Attention, Experts
from muster.planner.search import Choice
from muster.roofline.remat import Remat
from muster.roofline.remat_policy import remat_policy
from muster.roofline.software import default_software
from muster.roofline.step_memory import step_memory
from muster.roofline.step_time import StepModel
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.units import GIB
from tests.roofline.cases import dense, mixture

CLUSTERS = (
    "v5e-16",
    "v5e:4x8",
    "v4:2x2x4",
    "2xv4:2x2x2",
    "v5p:4x4x4",
    "v3-8",
    "h100:16",
    "h100:24",
    "2xh100:8",
    "cpu:8",
)
SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LENGTHS = (128, 256, 512, 2048, 6144)


@st.composite
def models(draw: st.DrawFn) -> Architecture:
    D, N = draw(st.sampled_from([(256, 4), (512, 8), (1024, 12)]))
    shape = {
        "L": draw(st.sampled_from([2, 3, 4, 6, 12])),
        "D": D,
        "F": draw(st.sampled_from([512, 768, 4096])),
        "N": N,
        "K": draw(st.sampled_from([each for each in (1, 2, 3, 4, 8, 12) if N % each == 0])),
        "H": 64,
        "V": draw(st.sampled_from([1000, 50257])),
    }
    if draw(st.booleans()):
        return dense(**shape)  # type: ignore[arg-type]
    return mixture(**shape, E=draw(st.sampled_from([4, 6, 16])), k=2)


workloads = st.builds(
    Workload,
    sequence_length=st.sampled_from(LENGTHS),
    batch_sequences=st.sampled_from(SEQUENCES),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A small cluster, sometimes with so little memory that little fits."""
    cluster = parse_cluster(draw(st.sampled_from(CLUSTERS)))
    hbm = draw(st.sampled_from([1.0, 0.1, 0.02]))
    return with_chip(cluster, replace(cluster.chip, hbm_bytes=int(cluster.chip.hbm_bytes * hbm)))


def splits(cluster: Cluster, workload: Workload) -> bool:
    return workload.batch_sequences % cluster.slices == 0


def with_chip(cluster: Cluster, chip: Chip) -> Cluster:
    return replace(cluster, slice=slice_of(chip, cluster.slice.shape))


def faster_links(chip: Chip, times: float) -> Chip:
    """The chip with every bandwidth so many times larger, HBM's too."""
    match chip.network:
        case Torus() as torus:
            network: Torus | Switched | Loopback = replace(
                torus,
                axis_bidi_bandwidth=times * torus.axis_bidi_bandwidth,
                link_bandwidth=times * torus.link_bandwidth,
                dcn_bandwidth_per_chip=times * torus.dcn_bandwidth_per_chip,
                dcn_bandwidth_per_host=times * torus.dcn_bandwidth_per_host,
            )
        case Switched() as switched:
            network = replace(
                switched,
                scale_up_bandwidth=times * switched.scale_up_bandwidth,
                scale_up_link_bandwidth=times * switched.scale_up_link_bandwidth,
                scale_out_bandwidth=times * switched.scale_out_bandwidth,
            )
        case Loopback() as loopback:
            network = replace(loopback, bandwidth=times * loopback.bandwidth)
    return replace(chip, network=network, hbm_bandwidth=times * chip.hbm_bandwidth)


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def violations(
    architecture: Architecture, cluster: Cluster, workload: Workload, layout: Layout
) -> list[str]:
    """Every rule of a legal layout that this one breaks, by name."""
    T, chip, per_slice = workload.sequence_length, cluster.chip, layout.chips_per_slice
    ways = layout.stage * layout.data * layout.fsdp * layout.sequence * layout.expert
    gpus = chip.network if isinstance(chip.network, Switched) else None
    host = chip.chips_per_host
    local, rest = divmod(
        workload.batch_sequences, layout.slice * layout.data * layout.fsdp * layout.expert
    )
    layers = architecture.num_layers
    pieces = layout.stage * layout.virtual_stages
    broken = {
        "product": ways * layout.tensor * layout.slice != layout.chips_used,
        "slices": layout.slice != cluster.slices,
        "chips": per_slice > cluster.slice.chips,
        "host": not chip.slices and bool(per_slice % host and host % per_slice),
        "batch": rest > 0,
        "microbatches": local % layout.microbatches > 0,
        "sequence": T % layout.sequence > 0 or (layout.sequence > 1 and T / layout.sequence < 128),
        "stages": layout.stage > layers
        or (
            layers % layout.stage
            and (layers + 2) % layout.stage
            and not is_power_of_two(layout.stage)
        ),
        "pipeline": layout.stage > 1
        and (gpus is None or layout.fsdp > 1 or layout.microbatches < layout.stage),
        "interleaving": layout.virtual_stages > 1
        and (
            (layers if layers % layout.stage == 0 else layers + 2) % pieces > 0
            or layout.microbatches % layout.stage > 0
        ),
        "domain": gpus is not None and layout.tensor > gpus.domain_chips,
        "tile": chip.kind == "tpu"
        and layout.weight_shards > 1
        and architecture.d_model / layout.weight_shards < 16,
        "tensor": not _tensor_splits(architecture, layout.tensor),
        "expert": layout.expert > 1 and not _experts_split(architecture, layout.expert),
    }
    return [rule for rule, breaks in broken.items() if breaks]


def _tensor_splits(architecture: Architecture, tensor: int) -> bool:
    for layer in architecture.layers:
        assert isinstance(layer.mixer, Attention)
        assert layer.mlp is not None
        kv = layer.mixer.num_kv_heads
        if (
            layer.mixer.num_heads % tensor
            or layer.mlp.d_ff % tensor
            or (kv % tensor and tensor % kv)
        ):
            return False
    return True


def _experts_split(architecture: Architecture, expert: int) -> bool:
    experts = [each.mlp for each in architecture.layers if isinstance(each.mlp, Experts)]
    return bool(experts) and all(each.num_experts % expert == 0 for each in experts)


def filled(cluster: Cluster, chips: int) -> list[Cluster]:
    """The clusters that a layout on so many chips a slice can run on."""
    rule = cluster.chip.slices
    if chips == cluster.slice.chips:
        return [cluster]
    if rule is None:
        return [replace(cluster, slice=slice_of(cluster.chip, (chips,)))]
    given = cluster.slice.shape
    legal = [shape for shape in _boxes(chips, len(given)) if is_legal(rule, shape)]
    cubic = min(legal, key=lambda shape: (sum(shape), shape), default=None)
    shapes = [
        shape
        for shape in legal
        if shape == cubic or all(a <= b for a, b in zip(sorted(shape), sorted(given), strict=True))
    ]
    return [replace(cluster, slice=slice_of(cluster.chip, shape)) for shape in shapes]


def _boxes(chips: int, dims: int) -> Iterator[tuple[int, ...]]:
    if dims == 1:
        yield (chips,)
        return
    for first in range(1, chips + 1):
        if chips % first == 0:
            for rest in _boxes(chips // first, dims - 1):
                yield (first, *rest)


def every_layout(
    architecture: Architecture, cluster: Cluster, workload: Workload
) -> Iterator[Layout]:
    """All legal layouts, by trying everything."""
    limit = cluster.slice.chips
    zero_1 = not default_software(cluster.chip).shards_replicas
    per_slice = workload.batch_sequences // cluster.slices
    for tensor in range(1, limit + 1):
        if not _tensor_splits(architecture, tensor):
            continue
        for expert in range(1, limit // tensor + 1):
            pieces = min(limit // (tensor * expert), workload.sequence_length // 128 or 1)
            for sequence in (n for n in range(1, pieces + 1) if workload.sequence_length % n == 0):
                for stage in range(1, architecture.num_layers + 1):
                    inner = tensor * expert * sequence * stage
                    for batch in range(1, min(per_slice, limit // inner) + 1):
                        for fsdp in (each for each in range(1, batch + 1) if batch % each == 0):
                            layout = Layout(
                                slice=cluster.slices,
                                stage=stage,
                                data=batch // fsdp,
                                fsdp=fsdp,
                                sequence=sequence,
                                expert=expert,
                                tensor=tensor,
                                shards_optimizer=zero_1 and batch > fsdp,
                            )
                            yield from _in_microbatches(architecture, cluster, workload, layout)


def _in_microbatches(
    architecture: Architecture, cluster: Cluster, workload: Workload, layout: Layout
) -> Iterator[Layout]:
    local = workload.batch_sequences // layout.batch_ways
    for microbatches in range(1, local + 1):
        for pieces in range(1, 9):
            split = replace(layout, microbatches=microbatches, virtual_stages=pieces)
            if layout.stage == 1 and pieces > 1:
                break
            if not violations(architecture, cluster, workload, split):
                yield split


def every_choice(
    architecture: Architecture, cluster: Cluster, workload: Workload
) -> Iterator[Choice]:
    """All legal layouts with every recomputation that fits; offloading only if none other does."""
    found = list(_every_choice(architecture, cluster, workload))
    kept = [choice for choice in found if choice.remat is not Remat.OFFLOAD]
    yield from kept or found


def _every_choice(
    architecture: Architecture, cluster: Cluster, workload: Workload
) -> Iterator[Choice]:
    software = default_software(cluster.chip)
    models_on: dict[int, list[StepModel]] = {}
    dram = cluster.chip.fact("host.dram_bytes")
    host_bytes = 256 * GIB / cluster.chip.chips_per_host
    if dram and isinstance(dram.value, int | float):
        host_bytes = dram.value / cluster.chip.chips_per_host
    for layout in every_layout(architecture, cluster, workload):
        chips = layout.chips_per_slice
        if chips not in models_on:
            models_on[chips] = [
                StepModel(architecture, where, workload) for where in filled(cluster, chips)
            ]
        for model, remat in itertools.product(models_on[chips], Remat):
            if remat is Remat.OFFLOAD and cluster.chip.kind != "tpu":
                continue
            policy = remat_policy(remat, whole_layer=software.whole_layer)
            memory = step_memory(model, layout, policy)
            if memory.fits and memory.host <= host_bytes:
                yield Choice(
                    cluster=model.cluster,
                    layout=layout,
                    remat=remat,
                    step=model.step(layout, policy),
                    memory=memory,
                )


def seconds(choice: Choice | None) -> float:
    return choice.seconds if choice else math.inf
