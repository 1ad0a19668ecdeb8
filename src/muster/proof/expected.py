"""What a plan expects its collectives to send, beside what the compiled program sends.

The planner's own step model, on links on which every byte takes a second: what it says of time is
then bytes, and no rule of traffic is written down twice (`roofline.traffic`). A chip of n sends
(n - 1) / n of an array that is gathered, scattered or exchanged, and twice that of one that is
reduced.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

from muster.planner.plan_file import PlannedRun
from muster.roofline.fabric import Group, Groups
from muster.roofline.remat_policy import remat_policy
from muster.roofline.step_model import StepModel
from muster.sharding.mesh import Layout
from muster.sharding.rules import SHARD_AXES

GATHER, SCATTER, REDUCE, EXCHANGE = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
# Fewer bytes than this share of everything that is sent: scalars, norms, masks.
SMALL = 0.005


class Sent(Protocol):
    """Collectives of the program, of one kind between the same chips."""

    @property
    def kind(self) -> str:
        """Which collective."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes that it joins; `fsdp:4` for part of one."""

    @property
    def bytes_per_chip(self) -> float:
        """That one chip sends in one step."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One kind of the plan's traffic.

    Attributes:
        what: in words.
        kinds: collectives that do it.
        axes: mesh axes of more than one way that they join.
        bytes_per_chip: that one device sends in one step.
    """

    what: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    bytes_per_chip: float


@dataclass(frozen=True, kw_only=True)
class AxesTraffic:
    """Everything that is sent over the same mesh axes.

    Attributes:
        what: the plan's words for it; empty where the plan expects nothing there.
        expected_kinds: collectives that the plan expects.
        compiled_kinds: those of the program, the most bytes first.
        expected: bytes of one device and step by the plan.
        compiled: the same of the program.
    """

    axes: tuple[str, ...]
    what: str
    expected_kinds: tuple[str, ...]
    compiled_kinds: tuple[str, ...]
    expected: float
    compiled: float

    @property
    def ratio(self) -> float | None:
        """The program's bytes over the plan's; None where the plan expects none."""
        return self.compiled / self.expected if self.expected else None

    def to_json(self) -> dict[str, object]:
        """One entry of `traffic` in `muster verify --json`."""
        return {
            "axes": list(self.axes),
            "what": self.what,
            "expected_kinds": list(self.expected_kinds),
            "compiled_kinds": list(self.compiled_kinds),
            "expected_bytes_per_chip": self.expected,
            "compiled_bytes_per_chip": self.compiled,
            "ratio": self.ratio,
        }


class _BytesModel(StepModel):
    """The planner's model where one group's bytes take a second each, and all others' nothing."""

    counted: str = ""

    def groups(self, layout: Layout) -> Groups:
        found = super().groups(layout)
        counts = {
            each.name: _of_bytes(getattr(found, each.name), counted=each.name == self.counted)
            for each in fields(Groups)
            if isinstance(getattr(found, each.name), Group)
        }
        between = 1.0 if self.counted == "dcn" else 0.0
        return replace(found, **counts, next_stage_per_byte=0.0, dcn_per_byte=between)


def _of_bytes(group: Group, *, counted: bool) -> Group:
    share = (group.ways - 1) / group.ways if counted else 0.0
    return replace(group, seconds_per_byte=share, to_all_per_byte=share, latency_seconds=0.0)


def expected_traffic(planned: PlannedRun, mesh: Mapping[str, int]) -> tuple[Expected, ...]:
    """What the plan expects one device to send in a step.

    Args:
        planned: the plan.
        mesh: ways of every axis over devices, which are more than the chips where those have two.
    """
    ways = {axis: mesh.get(axis, getattr(planned.layout, axis)) for axis in _AXES}
    layout = replace(planned.layout, **ways)
    model = _BytesModel(planned.architecture, planned.cluster, planned.workload)
    policy = remat_policy(planned.remat, whole_layer=model.software.whole_layer)

    def count(group: str, term: str, *, gather: int, reduce: int) -> float:
        model.counted, model.gather, model.reduce = group, gather, reduce
        return float(getattr(model.step(layout, policy).traffic, term))

    def found() -> Iterator[Expected]:
        both = {"gather": model.gather, "reduce": model.reduce}
        shards = {"weights": SHARD_AXES, "routed": ("fsdp", "sequence")}
        for group, axes in shards.items():
            whose = "experts" if group == "routed" else "weights"
            for what, kind, bytes_of in (
                (f"{whose} gathered", GATHER, "gather"),
                ("their gradients scattered", SCATTER, "reduce"),
            ):
                sizes = {name: size * (name == bytes_of) for name, size in both.items()}
                yield _expected(what, (kind,), axes, count(group, "fsdp", **sizes))
        for group in ("data", "routed_data"):
            words = "gradients between replicas"
            yield _expected(words, (REDUCE,), ("data",), count(group, "data", **both))
        for axis, term, words, kinds in _OTHERS:
            yield _expected(words, kinds, (axis,), count(term, term, **both))

    def _expected(what: str, kinds: tuple[str, ...], axes: Iterable[str], sent: float) -> Expected:
        split = tuple(axis for axis in axes if ways[axis] > 1)
        return Expected(what=what, kinds=kinds, axes=split, bytes_per_chip=sent)

    return tuple(each for each in found() if each.bytes_per_chip > 0)


_AXES = ("slice", "data", "fsdp", "sequence", "expert", "tensor")
_OTHERS = (
    ("tensor", "tensor", "activations between blocks", (GATHER, SCATTER)),
    ("sequence", "sequence", "keys and values", (GATHER, SCATTER)),
    ("expert", "expert", "tokens to their experts and back", (EXCHANGE,)),
    ("slice", "dcn", "gradients between slices", (REDUCE,)),
)


def compared(expected: Iterable[Expected], sent: Iterable[Sent]) -> tuple[AxesTraffic, ...]:
    """The plan's traffic beside the program's, by the mesh axes that it goes over."""
    planned: dict[frozenset[str], list[Expected]] = {}
    for each in expected:
        planned.setdefault(frozenset(each.axes), []).append(each)
    found: dict[frozenset[str], dict[str, float]] = {}
    for collective in sent:
        axes = _planned_as(frozenset(axis.partition(":")[0] for axis in collective.axes), planned)
        kinds = found.setdefault(axes, {})
        kinds[collective.kind] = kinds.get(collective.kind, 0.0) + collective.bytes_per_chip
    rows = [
        _row(axes, planned.get(axes, []), found.get(axes, {}))
        for axes in dict.fromkeys((*planned, *found))
    ]
    return tuple(sorted(rows, key=lambda row: -max(row.expected, row.compiled)))


def _planned_as(
    axes: frozenset[str], planned: Mapping[frozenset[str], list[Expected]]
) -> frozenset[str]:
    """The axes under which the plan has what goes over these.

    Weights that several axes shard are gathered one after the other, most bytes over `fsdp`.
    """
    if axes in planned or "fsdp" not in axes:
        return axes
    return next((block for block in planned if axes < block), axes)


def _row(axes: frozenset[str], plan: list[Expected], kinds: Mapping[str, float]) -> AxesTraffic:
    known = [axis for axis in _AXES if axis in axes]
    return AxesTraffic(
        axes=(*known, *sorted(axes.difference(known))),
        what=", ".join(dict.fromkeys(each.what for each in plan)),
        expected_kinds=tuple(dict.fromkeys(kind for each in plan for kind in each.kinds)),
        compiled_kinds=tuple(sorted(kinds, key=lambda kind: -kinds[kind])),
        expected=sum(each.bytes_per_chip for each in plan),
        compiled=sum(kinds.values()),
    )


def large(rows: Iterable[AxesTraffic]) -> tuple[AxesTraffic, ...]:
    """The rows that are not small: what the plan expects, and what is no trifle."""
    everything = tuple(rows)
    total = sum(row.compiled for row in everything)
    return tuple(row for row in everything if row.expected or row.compiled >= SMALL * total)
