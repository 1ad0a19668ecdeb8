"""A published layout among those that the search finds: what is compared, and its JSON."""

from dataclasses import dataclass

from muster.planner.search import AXES, Choice
from muster.roofline.step_memory import StepMemory
from muster.roofline.step_time import StepTime
from muster.sharding.mesh import Layout
from muster.validation.groups import Group
from muster.validation.setup import Setup

LARGE_GAP = 0.25  # a gain above it has its reason printed
NEAR = 0.05  # what counts as the same time; a published layout faster by more has its reason too


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One published layout among those that the search finds.

    Attributes:
        group: the set-up, its rows averaged.
        published: predicted step of the layout as it ran.
        memory: its predicted memory.
        tuned: the search's best on the same mesh; None where it finds none.
        familiar: the search's best with the axes that the source's runs use.
        best: the search's best; None where nothing fits.
        rank: of the mesh; None where it is beyond those listed.
        listed: meshes within 25 % of the best.
        measured_best: how much faster the fastest measured layout of the family is.
        reason: of a large gap; blank for others.
    """

    group: Group
    published: StepTime
    memory: StepMemory
    tuned: Choice | None
    familiar: Choice | None
    best: Choice | None
    rank: int | None
    listed: int
    measured_best: float
    reason: str = ""

    @property
    def setup(self) -> Setup:
        """The group's first row."""
        return self.group.setups[0]

    @property
    def gain(self) -> float | None:
        """How much longer the published layout takes than the best; negative where it is faster."""
        return self.published.total / self.best.seconds - 1 if self.best else None

    @property
    def familiar_gain(self) -> float | None:
        """The same with the axes alone that the source's runs use."""
        return self.published.total / self.familiar.seconds - 1 if self.familiar else None

    @property
    def mesh_gain(self) -> float | None:
        """The same of the published mesh, its microbatches and remat chosen by the search."""
        if not (self.best and self.tuned):
            return None
        return self.tuned.seconds / self.best.seconds - 1

    @property
    def odd(self) -> bool:
        """Whether the gap asks for a reason."""
        return self.gain is None or not -NEAR <= self.gain <= LARGE_GAP

    @property
    def rank_words(self) -> str:
        """`3/41`, or `>41` beyond those listed; `-` where the search has no such mesh."""
        if not (self.best and self.tuned):
            return "-"
        return f"{self.rank}/{self.listed}" if self.rank else f">{self.listed}"


@dataclass(frozen=True, kw_only=True)
class Unranked:
    """A set-up that the search could not take."""

    group: Group
    reason: str


def rank_json(rank: Rank) -> dict[str, object]:
    """One object a set-up."""
    return {
        "group": rank.group.id,
        "ids": [setup.id for setup in rank.group.setups],
        "rank": rank.rank,
        "listed": rank.listed,
        "gain": rank.gain,
        "familiar_gain": rank.familiar_gain,
        "mesh_gain": rank.mesh_gain,
        "measured_seconds": rank.group.measured_seconds,
        "published": {
            **_layout_json(rank.setup.layout),
            "remat": rank.setup.remat.raw,
            "step_seconds": rank.published.total,
            "memory_bytes": rank.memory.total,
            "fits": rank.memory.fits,
        },
        "tuned": _choice_json(rank.tuned),
        "familiar": _choice_json(rank.familiar),
        "best": _choice_json(rank.best),
        "slower_than_fastest_measured": rank.measured_best,
        "reason": rank.reason or None,
        "skipped": None,
    }


def unranked_json(unranked: Unranked) -> dict[str, object]:
    """The same object of a set-up that was not searched: why, and nothing else."""
    ids = [setup.id for setup in unranked.group.setups]
    return {"group": unranked.group.id, "ids": ids, "skipped": unranked.reason}


def _choice_json(choice: Choice | None) -> dict[str, object] | None:
    if choice is None:
        return None
    return {
        **_layout_json(choice.layout),
        "remat": choice.remat.value,
        "step_seconds": choice.seconds,
        "memory_bytes": choice.memory.total,
        "fits": True,
    }


def _layout_json(layout: Layout) -> dict[str, int]:
    names = ("slice", *AXES, "virtual_stages")
    return {name: getattr(layout, name) for name in names}
