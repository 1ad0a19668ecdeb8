"""Rows of one set-up, averaged, and the half that each set-up belongs to.

Rows are of one set-up when everything that a prediction takes is equal: source, model dims, chip,
network, slice, batch, layout, remat, kernel, formats. What is left differs in software versions,
compiler flags and luck: those are averaged, by the geometric mean of the measured seconds, since
errors are ratios. Constants are fitted on the groups whose id's SHA-256 begins with an even byte
("fit"); the others are held back.
"""

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from muster.validation.setup import Setup

type Half = Literal["fit", "held back"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Measurements of one set-up.

    Attributes:
        id: readable, and the same for the same set-up in any file.
        setups: the rows, in the order of the file.
    """

    id: str
    setups: tuple[Setup, ...]

    @property
    def half(self) -> Half:
        """Whether constants may be fitted on it."""
        return half_of(self.id)

    @property
    def measured_seconds(self) -> float:
        """Geometric mean of the measured step times."""
        return geometric_mean(setup.step_seconds for setup in self.setups)

    @property
    def scatter(self) -> float:
        """By how much the slowest measurement exceeds the fastest: 0.1 is 10 %."""
        times = [setup.step_seconds for setup in self.setups]
        return max(times) / min(times) - 1


def group_setups(setups: Iterable[Setup]) -> tuple[Group, ...]:
    """Groups of equal set-ups, in order of their first rows."""
    groups: dict[str, list[Setup]] = {}
    for setup in setups:
        groups.setdefault(group_id(setup), []).append(setup)
    return tuple(Group(id=key, setups=tuple(rows)) for key, rows in groups.items())


def group_id(setup: Setup) -> str:
    """What the set-up is, in one line: readable parts, then a digest of everything.

    The digest covers what the readable part leaves out (dims, network, kernel, formats).
    """
    run, layout = setup.run, setup.layout
    axes = {
        "slice": layout.slice,
        "pp": layout.stage,
        "dp": layout.data,
        "fsdp": layout.fsdp,
        "cp": layout.sequence,
        "ep": layout.expert,
        "tp": layout.tensor,
    }
    ways = ".".join(f"{name}{size}" for name, size in axes.items() if size > 1) or "one"
    batch = f"s{setup.workload.sequence_length}.b{setup.workload.batch_sequences}"
    parts = (
        _slug(run.source_group) or "unnamed",
        _slug(run.model) or "model",
        setup.cluster.name,
        batch,
        f"{ways}.m{layout.microbatches}",
        _slug(run.compute_dtype),
    )
    return "/".join((*parts, _digest(setup)))


def half_of(group: str) -> Half:
    """The half of a group's id: the first byte of its SHA-256, even or odd.

    >>> half_of("a"), half_of("b")
    ('fit', 'fit')
    """
    return "held back" if hashlib.sha256(group.encode()).digest()[0] % 2 else "fit"


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios.

    >>> round(geometric_mean([1, 4]), 12)
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def _digest(setup: Setup) -> str:
    """Of the row's own cells, so that reading one of them otherwise does not change the half."""
    run, chip = setup.run, setup.cluster.chip
    dims = (
        run.n_layers,
        run.d_model,
        run.d_ff,
        run.n_heads,
        run.n_kv_heads,
        run.head_dim,
        run.vocab,
        run.tied_embeddings,
        run.n_experts,
        run.experts_per_token,
        run.gated_mlp,
    )
    # The memory that a GPU is sold with tells 40 from 80 GB; what its driver leaves is a reading.
    memory = chip.hbm_marketing_bytes if chip.kind == "gpu" else chip.hbm_bytes
    machine = (chip.id, memory, getattr(chip.network, "scale_out_bandwidth", 0))
    words = (
        run.remat_policy,
        run.weight_dtype,
        run.compute_dtype,
        run.optimizer,
        run.attention_kernel,
    )
    program = (
        *(word.lower() for word in words),
        setup.layout.virtual_stages,
        setup.optimizer_ways,
        setup.sequence_parallel,
    )
    return hashlib.sha256(repr((dims, machine, program)).encode()).hexdigest()[:8]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")[:40]
