"""Every collective of one step: what, between whom, how often, how many bytes, how.

A chip of a group of n sends, of an array of V bytes (gathered, reduced, or before the exchange),

    all-gather, reduce-scatter, all-to-all   V (n - 1) / n
    all-reduce                               2 V (n - 1) / n
    collective-permute, -broadcast           V
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from muster.proof.hlo.groups import (
    Groups,
    axes_crossed,
    axes_of,
    mesh_in,
    parse_groups,
    parse_pairs,
)
from muster.proof.hlo.kinds import MEGASCALE, collective_inside, fusion_role
from muster.proof.hlo.known import COLLECTIVES
from muster.proof.hlo.program import Op, Program
from muster.proof.hlo.schedule import Visit, walk
from muster.proof.hlo.strategy import Strategy, strategy_of

UNKNOWN_GROUPS = "unknown groups"
SLICE_AXIS = "slice"
_TYPE = re.compile(MEGASCALE + r'([A-Z_]+)"')
_RANGE = r"\d{1,9}(?::\d{1,9})?"
_TARGET = re.compile(rf'_xla_megascale_target="\{{({_RANGE}(?:,{_RANGE})*)\}}')


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective of the program, or several of the same kind merged.

    Attributes:
        kind: "all-gather", "reduce-scatter", ...
        axes: mesh axes that it joins; `fsdp:4` for part of one.
        ways: devices of a group; for a permutation those that send along a ring.
        count: how often one step runs it.
        array_bytes: V of one run.
        bytes_per_chip: that one chip sends in one step.
        strategy: the compiler's choice.
        asynchronous: whether other operations run meanwhile.
        op_name: the model's own name.
        name: of the operation.
        groups: devices; empty where they are not understood.
        fused: whether the compiler made it part of a fusion.
        dtype: of the numbers sent.
        thread: the core that runs it: "" for the main one.
        sparse_cores: numbers of the chip's SparseCores that run it, one collective at a time each.
    """

    kind: str
    axes: tuple[str, ...]
    ways: int
    count: int
    array_bytes: int
    bytes_per_chip: float
    strategy: Strategy
    asynchronous: bool
    op_name: str = ""
    name: str = ""
    groups: Groups = ()
    fused: bool = False
    dtype: str = ""
    thread: str = ""
    sparse_cores: tuple[str, ...] = ()


def collectives(program: Program, mesh: Mapping[str, int] | None = None) -> list[Collective]:
    """Every collective that a step runs, in the order of the schedule.

    Args:
        program: the program.
        mesh: ways of every axis, outermost first; None for the one that the program names.
    """
    known = mesh_for(program, mesh)
    return [
        collective_of(program, visit, inner, known)
        for visit in walk(program)
        if (inner := collective_inside(program, visit.op)) is not None
    ]


def merged(found: Iterable[Collective]) -> list[Collective]:
    """One entry a kind, axes, strategy and asynchrony, the most bytes first."""
    table: dict[tuple[object, ...], Collective] = {}
    for each in found:
        key = (each.kind, each.axes, str(each.strategy), each.asynchronous)
        if key not in table:
            table[key] = replace(each, groups=(), name="", op_name="")
            continue
        so_far = table[key]
        table[key] = replace(
            so_far,
            count=so_far.count + each.count,
            array_bytes=max(so_far.array_bytes, each.array_bytes),
            bytes_per_chip=so_far.bytes_per_chip + each.bytes_per_chip,
        )
    return sorted(table.values(), key=lambda each: -each.bytes_per_chip)


def mesh_for(program: Program, mesh: Mapping[str, int] | None) -> dict[str, int]:
    """The mesh over the devices that run one program; of several slices each runs its own."""
    known = dict(mesh) if mesh is not None else mesh_of(program)
    if math.prod(known.values()) != program.devices:
        known.pop(SLICE_AXIS, None)
    return known


def mesh_of(program: Program) -> dict[str, int]:
    """The mesh that most of the program's groups name by axes that a person named, else any."""
    counts: dict[tuple[tuple[str, int], ...], int] = {}
    for op in program.ops():
        written = op.attributes.get("replica_groups", "")
        mesh = mesh_in(written)
        if mesh and parse_groups(written, program.devices):
            key = tuple(mesh.items())
            named = not any(axis.startswith("axis_") for axis in mesh)
            counts[key] = counts.get(key, 0) + (1_000_000 if named else 1)
    best = max(counts, key=lambda key: counts[key], default=())
    return dict(best) if best else {"device": program.devices}


def collective_of(program: Program, visit: Visit, inner: Op, mesh: Mapping[str, int]) -> Collective:
    """One collective of the schedule."""
    op = visit.op
    if inner.opcode == "send":
        return _between_slices(visit, program.op_name(op))
    kind = _kind(op, inner)
    groups, axes, ways = _between(inner, mesh, program.devices)
    array = array_bytes(kind, inner, ways)
    return Collective(
        kind=kind,
        axes=axes,
        ways=ways,
        count=visit.times,
        array_bytes=array,
        bytes_per_chip=sent(kind, array, ways) * visit.times,
        strategy=strategy_of(op, inner),
        asynchronous=op.phase == "start" or fusion_role(program, op) == "begins",
        op_name=op.op_name or inner.op_name,
        name=op.name,
        groups=groups,
        fused=op is not inner and op.opcode == "fusion",
        dtype=next((array.dtype for array in inner.shape.arrays()), ""),
        thread=visit.thread,
        sparse_cores=_sparse_cores(op),
    )


def _sparse_cores(op: Op) -> tuple[str, ...]:
    """The SparseCores that an operation is started on."""
    if '"sparse_core_config"' not in op.attributes.get("backend_config", ""):
        return ()
    return tuple(map(str, op.backend.get("sparse_core_config", {}).get("core_ids", ())))


def _between_slices(visit: Visit, op_name: str) -> Collective:
    """What the megascale runtime does with an array that a chip hands it."""
    op, said = visit.op, visit.op.attributes["frontend_attributes"]
    kind, target = _TYPE.search(said), _TARGET.search(said)
    ways = _members(target.group(1)) if target else 2
    array = op.shape.elements[0] if op.shape.is_tuple else op.shape
    name = kind.group(1).lower().replace("_", "-") if kind else "send"
    return Collective(
        kind=name,
        axes=(SLICE_AXIS,),
        ways=ways,
        count=visit.times,
        array_bytes=array.bytes,
        bytes_per_chip=sent(name, array.bytes, ways) * visit.times,
        strategy=Strategy(emitter="megascale"),
        asynchronous=True,
        op_name=op_name,
        name=op.name,
        dtype=array.dtype,
    )


def _members(text: str) -> int:
    """How many numbers a list with ranges has.

    >>> _members("1,2"), _members("0:7"), _members("1:3,5")
    (2, 8, 4)
    """
    total = 0
    for part in text.split(","):
        first, _, last = part.partition(":")
        total += int(last) - int(first) + 1 if last else 1
    return total


def sent(kind: str, array: float, ways: int) -> float:
    """Bytes that one chip sends in one run.

    >>> sent("all-reduce", 8.0, 4), sent("all-gather", 8.0, 4), sent("collective-permute", 8.0, 4)
    (12.0, 6.0, 8.0)
    """
    if kind in {"collective-permute", "collective-broadcast"}:
        return array
    share = (ways - 1) / ways if ways > 0 else 0.0
    return array * share * (2 if kind == "all-reduce" else 1)


def array_bytes(kind: str, inner: Op, ways: int) -> int:
    """V: bytes of the whole array of a group."""
    if inner.base == "all-reduce":  # also inside a fusion that keeps one piece of the sum
        return inner.shape.bytes
    result = inner.shape
    if inner.phase == "start" and inner.base != "all-reduce" and len(result.elements) > 1:
        result = result.elements[1]  # (operand, result, flags)
    return result.bytes * (ways if kind == "reduce-scatter" else 1)


def _kind(op: Op, inner: Op) -> str:
    assert inner.base in COLLECTIVES
    smaller = op.shape.bytes < inner.shape.bytes
    if inner.base == "all-reduce" and op is not inner and op.opcode == "fusion" and smaller:
        return "reduce-scatter"  # the TPU's form of it: an all-reduce of which a slice is kept
    return inner.base


def groups_written(op: Op) -> str:
    """The devices of a collective as the program has them."""
    shifts = op.base == "collective-permute"
    return op.attributes.get("source_target_pairs" if shifts else "replica_groups", "")


def _between(op: Op, mesh: Mapping[str, int], devices: int) -> tuple[Groups, tuple[str, ...], int]:
    """The devices, mesh axes and ways of a collective."""
    shifts = op.base == "collective-permute"
    return _devices_of(groups_written(op), tuple(mesh.items()), devices, shifts=shifts)


@lru_cache(maxsize=1024)
def _devices_of(
    written: str, mesh: tuple[tuple[str, int], ...], devices: int, *, shifts: bool
) -> tuple[Groups, tuple[str, ...], int]:
    """The same, once for each spelling: devices are thousands, collectives hundreds."""
    if shifts:
        pairs = parse_pairs(written, devices)
        if pairs is None:
            return (), (UNKNOWN_GROUPS,), devices
        return pairs, axes_crossed(pairs, dict(mesh)), max(map(len, _rings(pairs)), default=0)
    groups = parse_groups(written, devices)
    if not groups:
        return (), (UNKNOWN_GROUPS,), devices
    return groups, axes_of(groups[0], dict(mesh)), len(groups[0])


def _rings(pairs: Groups) -> Iterator[list[int]]:
    """The paths along which a permutation sends."""
    following = dict(pair for pair in pairs if len(pair) == 2)
    seen: set[int] = set()
    for first in following:
        path, at = [], first
        while at not in seen:
            seen.add(at)
            path.append(at)
            at = following.get(at, first)
        if path:
            yield path
