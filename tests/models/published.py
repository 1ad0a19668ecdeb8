"""Published configs and the counts that Hugging Face's own classes make of test configs."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.models.architecture import Architecture, Attention, LatentAttention
from muster.models.hf_config import architecture_from_config
from muster.sharding.weights import weight_table

DATA = Path(__file__).parents[1] / "data"
CONFIGS = Path(__file__).parents[2] / "src/muster/models/data/configs"


@dataclass(frozen=True, kw_only=True)
class Totals:
    trainable: int
    active: int
    untrained: int

    @property
    def stored(self) -> int:
        return self.trainable + self.untrained


def totals(architecture: Architecture) -> Totals:
    table = weight_table(architecture)
    return Totals(
        trainable=sum(weight.count for weight in table if weight.trainable),
        active=sum(weight.active_count for weight in table if weight.trainable),
        untrained=sum(weight.count for weight in table if not weight.trainable),
    )


def config(name: str) -> dict[str, object]:
    """A published config, by the name that `param_counts.csv` gives it."""
    loaded: dict[str, object] = json.loads((CONFIGS / f"{name}.json").read_text("utf-8"))
    return loaded


def published(name: str) -> Architecture:
    return architecture_from_config(config(name), name=name)


def read(model_type: str, **keys: object) -> Architecture:
    """A config of the class's own defaults but for `keys`."""
    return architecture_from_config({"model_type": model_type, **keys}, name=model_type)


def windows(architecture: Architecture) -> list[int | None]:
    """What each layer's attention sees; layers without attention are left out."""
    return [
        layer.mixer.window
        for layer in architecture.layers
        if isinstance(layer.mixer, Attention | LatentAttention)
    ]


def mixers(architecture: Architecture) -> list[str]:
    """The kind of each layer's mixer."""
    return [type(layer.mixer).__name__ for layer in architecture.layers]


def mlps(architecture: Architecture) -> list[str]:
    """The kind of each layer's MLP."""
    return [type(layer.mlp).__name__ for layer in architecture.layers]


@functools.cache
def hf_counts() -> tuple[Mapping[str, object], ...]:
    """Entries of id, config and what Hugging Face's class counts for it."""
    return tuple(json.loads((DATA / "hf_counts.json").read_text("utf-8"))["entries"])


def entries_of(families: frozenset[str]) -> list[Mapping[str, object]]:
    return [entry for entry in hf_counts() if model_type(entry) in families]


def model_type(entry: Mapping[str, object]) -> str:
    inner = entry["config"]
    assert isinstance(inner, dict)
    return str(inner["model_type"])


def assert_counts_as_hugging_face(entry: Mapping[str, object]) -> None:
    """Compare trainable and active parameters, and what is stored but not trained."""
    inner = entry["config"]
    assert isinstance(inner, dict)
    ours = totals(architecture_from_config(inner, name=str(entry["id"])))
    assert ours.trainable == entry["trainable"]
    assert ours.active == entry["active"]
    frozen, buffers = entry.get("frozen", 0), entry["buffers"]
    assert isinstance(frozen, int)
    assert isinstance(buffers, int)
    if model_type(entry) != "minimax":  # its buffers are constants that no checkpoint needs
        assert ours.untrained == frozen + buffers
