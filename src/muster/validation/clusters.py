"""A run's hardware words -> a `Cluster`, with the network that its topology states.

TPU types count TensorCores for v2 to v5p (`v5p-1024` is 512 chips); the row's chips over its slices
decide, and the topology's shape where it names one. GPUs are one flat slice. The words of a
topology set what one GPU sends out of its node:

    8x400 Gb/s                     50e9 B/s a GPU (one rail each)
    1600 Gb/s RoCE between nodes   25e9 (200 Gb/s a GPU)
    4x100 Gb/s Omni-Path           6.25e9 (50 Gb/s a GPU: 4 rails for 8 GPUs)
    GCP A3 High, TCPX              12.5e9 (Google's documentation: 800 Gb/s a VM)
    GCP A3 Mega                    25e9 (1,600 Gb/s); A3 Ultra and A4: 50e9 (3,200 Gb/s)
    vTrain's cluster               12.5e9 (vTrain's own configuration; runs.md)
"""

import math
import re
from dataclasses import replace

from muster.errors import MusterError
from muster.hardware import Cluster, chip_by_name, slice_of
from muster.hardware.chip import Chip, Switched, Torus
from muster.hardware.shapes import Shape, SliceRule, default_shape, is_legal, shapes_with
from muster.validation.runs import Run

GPUS_PER_NODE = 8
BITS = 8
_NETWORKS = (
    (r"a3 mega", 1600e9),
    (r"a3 ultra|\ba4x?\b", 3200e9),
    (r"tcpx|\ba3 high\b", 800e9),
    (r"\befa\b", 3200e9),
)
# torchtitan's cluster: H100 with 96 GB of HBM2e at 2.4 TB/s and 500 W (arXiv:2410.06511).
_HBM2E_H100 = {"memory_bytes": 96 * 10**9, "bandwidth": 2.4e12}
MOST_CHIPS = 2**20


def read_cluster(run: Run) -> tuple[Cluster, tuple[str, ...]] | str:
    """The cluster with remarks on what was taken for granted, or why there is none."""
    if run.n_chips is None:
        return "number of chips not stated"
    if run.n_chips > MOST_CHIPS:
        return f"{run.n_chips} chips are more than muster plans"
    chip = _chip(run.hardware)
    if isinstance(chip, str):
        return chip
    if isinstance(chip.network, Torus):
        return _tpu(chip, run)
    return _gpus(chip, run)


def read_power_watts(hardware: str) -> float | None:
    """The power limit that a hardware name states.

    >>> read_power_watts("H100-SXM-96GB-500W")
    500.0
    """
    match = re.search(r"(?<![\d.])(\d{3,4})\s*w\b", hardware.lower())
    return float(match[1]) if match else None


def chip_id(name: str) -> str | None:
    """The catalogue's id of the chip that a hardware name means; None where there is none.

    >>> chip_id("H100-SXM-96GB-500W"), chip_id("A100-40GB"), chip_id("abacus")
    ('h100', 'a100-40', None)
    """
    chip = _chip(name)
    return None if isinstance(chip, str) else chip.id


def _chip(name: str) -> Chip | str:
    """The chip of a name, its memory as the name says."""
    low = re.sub(r"[-\s]*\d{3,4}\s*w\b", "", name.strip().lower())
    memory = re.search(r"(\d+)\s*gi?b\b", low)
    candidates = [low, re.sub(r"[-\s]*(sxm\d?|hgx|dgx|nvl\d*)", "", low)]
    candidates += [re.sub(r"[-\s]*\d+\s*gi?b\b", "", each) for each in candidates]
    for candidate in candidates:
        try:
            chip = chip_by_name(candidate)
        except MusterError:
            continue
        if chip.id == "h100" and memory and int(memory[1]) == 96:
            return replace(
                chip,
                name=f"{chip.name}, 96 GB HBM2e",
                hbm_bytes=int(_HBM2E_H100["memory_bytes"]),
                hbm_marketing_bytes=int(_HBM2E_H100["memory_bytes"]),
                hbm_bandwidth=_HBM2E_H100["bandwidth"],
            )
        return chip
    return f"hardware {name!r} is not in the catalogue" if name else "hardware not stated"


def _tpu(chip: Chip, run: Run) -> tuple[Cluster, tuple[str, ...]] | str:
    rule = chip.slices
    assert rule is not None, chip.id
    slices, remarks = _slices(run, math.prod(rule.max_pod_shape))
    chips, rest = divmod(run.n_chips or 0, slices)
    if rest:
        return f"{run.n_chips} chips do not divide into {slices} slices"
    odd = _odd_topology(run.topology, chips, slices)
    if odd:
        return odd
    shape = _shape(rule, chips, run.topology)
    if shape is None:
        return f"no {chip.id} slice has {chips} chips"
    return Cluster(slice=slice_of(chip, shape), slices=slices), remarks


def _slices(run: Run, pod_chips: int) -> tuple[int, tuple[str, ...]]:
    """Slices: those of the column, else the `xN` that ends the topology, else as many pods."""
    named = re.search(r"\bx\s*(\d+)\b(?!\s*x)(?:\s*\(.*\))?\s*$", run.topology.lower())
    in_text = int(named[1]) if named and not re.search(r"\d\s*x\s*\d+\s*$", run.topology) else None
    if run.n_slices_or_nodes is not None:
        if in_text and in_text != run.n_slices_or_nodes:
            return run.n_slices_or_nodes, (
                f"topology names {in_text} slices, the column {run.n_slices_or_nodes}",
            )
        return run.n_slices_or_nodes, ()
    if in_text:
        return in_text, ()
    pods = -(-(run.n_chips or 1) // pod_chips)
    return pods, (f"slices not stated: {pods}",)


def _odd_topology(topology: str, chips: int, slices: int) -> str | None:
    """Why a topology cannot be that of so many chips a slice; None where it can."""
    if topology and not any(character.isdigit() for character in topology):
        return f"topology {topology[:60]!r} is not understood"
    shapes = [
        tuple(map(int, text.split("x")))
        for text in re.findall(r"(?<![\w.])\d{1,4}(?:x\d{1,4})+(?![\w.])", topology.lower())
    ]
    sizes = {math.prod(shape) for shape in shapes}
    if sizes and not sizes & {chips, chips * slices}:
        return f"contradiction: topology {topology[:60]!r}, but {chips} chips a slice"
    return None


def _shape(rule: SliceRule, chips: int, topology: str) -> Shape | None:
    for text in re.findall(r"\d+(?:x\d+)+", topology.lower().replace(" x ", "x")):
        shape = tuple(sorted(int(dim) for dim in text.split("x")))
        if math.prod(shape) == chips and is_legal(rule, shape):
            return shape
    default = default_shape(rule, chips)
    if default is not None:
        return default
    legal = shapes_with(rule, chips)
    return legal[0] if legal else None


def _gpus(chip: Chip, run: Run) -> tuple[Cluster, tuple[str, ...]] | str:
    network = chip.network
    remarks: tuple[str, ...] = ()
    if isinstance(network, Switched):
        stated = _bandwidth(run, chip.chips_per_host)
        if stated is not None:
            network = replace(network, scale_out_bandwidth=stated)
        elif (run.n_chips or 0) > network.domain_chips:
            remarks = ("network between nodes not stated: the chip's usual one",)
        chip = replace(chip, network=network)
    return Cluster(slice=slice_of(chip, (run.n_chips or 1,))), remarks


def _bandwidth(run: Run, chips_per_node: int) -> float | None:
    """Bytes/s that one GPU sends out of its node, as the topology states it.

    >>> _bandwidth(Run(id="a", hardware="a100", model="m", topology="4x100 Gb/s RoCE"), 8)
    6250000000.0
    """
    low = run.topology.lower()
    rails = re.search(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*gb(?:/s|ps|it)", low) or re.search(
        r"(?P<rate>\d+(?:\.\d+)?)\s*gb(?:/s|ps|it)?\s*x\s*(?P<rails>\d+)", low
    )
    if rails:
        groups = rails.groupdict()
        count = float(groups["rails"] if groups else rails[1])
        rate = float(groups["rate"] if groups else rails[2])
        return count * rate * 1e9 / BITS / chips_per_node
    total = re.search(r"(\d+(?:\.\d+)?)\s*(t|g)b(?:/s|ps|it)", low)
    if total:
        scale = 1e12 if total[2] == "t" else 1e9
        return float(total[1]) * scale / BITS / chips_per_node
    for pattern, bits_per_node in _NETWORKS:
        if re.search(pattern, low):
            return bits_per_node / BITS / chips_per_node
    if "vtrain" in f"{run.source_group} {run.source}".lower():
        return 12.5e9
    return None
