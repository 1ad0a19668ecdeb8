"""How the TPU compiler chose to run a collective, as its `collective_algorithm_config` says.

colors   parts of the array that go round at once, each its own way
phases   axes of the torus that each part goes round, one after the other
cores    sizes of those rings
dim_used which physical axis each color takes in each phase: 0 x, 1 y, 2 z
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.proof.hlo.program import Op

_NAMED = re.compile(r"\b(\w+)\{colors:(\d+) phases:(\d+) cores:((?:\{[\d ]+\},?)+)")
_DIMS = re.compile(r"dim_used:((?:\{[\d ]+\},?)+)")
_LISTS = re.compile(r"\{([\d ]+)\}")
_ND = re.compile(r"(\d)D")
_GROUP = re.compile(r"group_size = (\d+)")
_RING_DIM = re.compile(r"ICI_RING_DIM_([XYZ])")
AXES = "xyz"


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to run a collective.

    Attributes:
        emitter: the compiler's routine, such as "RotatedPincerEmitter"; "" where it names none.
        name: of the strategy, such as "UniDirectionNDRingStrategy"; "" where it names none.
        colors: parts that go round at once.
        rings: sizes of the rings of the first color, one a phase; 0 where it was not told.
        torus: physical axes that the colors take in their phases: ("xyz", "yzx", "zxy").
    """

    emitter: str = ""
    name: str = ""
    colors: int = 0
    rings: tuple[int, ...] = ()
    torus: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[int, ...]:
        """Numbers of the physical axes that are in use, where the compiler names them."""
        letters = set("".join(self.torus))
        return tuple(number for number, letter in enumerate(AXES) if letter in letters)

    @property
    def dims(self) -> int:
        """Physical axes that it uses at once, where its routine says so: 2DAllGather."""
        match = _ND.match(self.emitter)
        return int(match.group(1)) if match else 1

    @property
    def at_once(self) -> float:
        """Rings that carry data at once, each in both directions; one where nothing is said."""
        one_way = self.name.startswith("UniDirection")
        return self.colors / 2 if one_way else float(max(1, self.colors))

    def __str__(self) -> str:
        if not self.emitter and not self.name:
            return "not said"
        name = (self.name or self.emitter).removesuffix("Strategy").removeprefix("Strategy")
        rings = "x".join(map(str, self.rings)) if all(self.rings) else ""
        parts = [
            name,
            f"{self.colors} colors" if self.colors > 1 else "1 color" if self.colors else "",
        ]
        parts += [f"rings {rings}" if rings else "", "/".join(self.torus)]
        return ", ".join(part for part in parts if part)


def strategy_of(*ops: Op) -> Strategy:
    """The strategy that the first of these operations with one names."""
    for op in ops:
        offload = op.backend.get("collective_offload_config")
        if isinstance(offload, dict) and offload:
            return _read_offload(offload)
        config = op.backend.get("collective_algorithm_config")
        if isinstance(config, dict):
            return _read(
                config.get("emitter", ""), config.get("strategy", ""), config.get("debug", "")
            )
    return Strategy()


def _read_offload(offload: Mapping[str, Any]) -> Strategy:
    """What the sparse cores were told: each color's rings, one a phase."""
    for config in offload.values():
        said = config.get("ici_strategy_config", {}) if isinstance(config, dict) else {}
        colors = [each.get("phase_rings", []) for each in said.get("color_strategies", [])]
        if colors:
            kind = str(colors[0][0].get("ring_type", "")) if colors[0] else ""
            one_way = "UniDirection" if "UNIDIR" in kind else ""
            phases = ["".join(_ring_dims(color)) for color in colors]
            rings = tuple(max(0, int(ring.get("core_count", 0))) for ring in colors[0])
            return Strategy(
                emitter="SparseCoreOffload",
                name=f"{one_way}SparseCoreRing",
                colors=len(colors),
                rings=rings,
                torus=tuple(phases) if all(phases) else (),
            )
    return Strategy(emitter="SparseCoreOffload")


def _ring_dims(color: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The physical axis of each phase of a color."""
    for ring in color:
        found = _RING_DIM.search(str(ring.get("explicit_strategy_ring_dim", "")))
        yield found.group(1).lower() if found else ""


def _read(emitter: str, name: str, debug: str) -> Strategy:
    found, dims, group = _NAMED.search(debug), _DIMS.search(debug), _GROUP.search(debug)
    rings: tuple[int, ...] = ()
    colors = 0
    if found:
        name, colors = name or found.group(1), int(found.group(2))
        rings = tuple(map(int, _LISTS.findall(found.group(4))[0].split()))
    elif group:
        rings = (int(group.group(1)),)
    torus = tuple(
        "".join(AXES[int(dim)] if int(dim) < len(AXES) else dim for dim in each.split())
        for each in (_LISTS.findall(dims.group(1)) if dims else ())
    )
    return Strategy(emitter=emitter, name=name, colors=colors, rings=rings, torus=torus)
