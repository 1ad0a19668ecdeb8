"""The catalogue of known models, and the one way from what a person types to an `Architecture`.

The catalogue is data: `data/configs/NAME.json`, each a published config with its provenance, and
`data/published_counts.csv`, what the publishers say of their checkpoints' size.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from muster.errors import BadInput, UnknownName, shorten
from muster.models.architecture import Architecture
from muster.models.hf_config import architecture_from_config, parse_config, printable, read_config
from muster.models.hub import hub_config, is_hub_id

# A model that shares another's architecture to the last number, under the name people know.
SAME_AS = {"Llama-3.3-70B": "Llama-3.1-70B"}


@dataclass(frozen=True, kw_only=True)
class PublishedCount:
    """What a publisher or the hub says of a checkpoint's size.

    Attributes:
        params_total: numbers that the checkpoint holds.
        source: who says so.
        note: how it differs from the count of the architecture, if it does.
    """

    params_total: int
    source: str
    note: str


def catalogue_names() -> tuple[str, ...]:
    """The names of all models in the catalogue, in the order in which people would list them."""
    return tuple(sorted(_files(), key=_natural))


def list_models() -> tuple[Architecture, ...]:
    """Every model of the catalogue."""
    return tuple(catalogue_model(name) for name in catalogue_names())


@cache
def catalogue_model(name: str) -> Architecture:
    """One model of the catalogue, by its exact name."""
    architecture = architecture_from_config(_config(name), name=name)
    return replace(architecture, stores_tied_head=name in _stores_tied_head())


def published_counts(architecture: Architecture) -> tuple[PublishedCount, ...]:
    """What is published about a model's checkpoint; nothing, unless it is a catalogue model."""
    name = SAME_AS.get(architecture.name, architecture.name)
    if name not in _files() or _nameless(catalogue_model(name)) != _nameless(architecture):
        return ()
    return tuple(
        PublishedCount(
            params_total=int(row["params_total"]), source=row["source"], note=row["note"]
        )
        for row in _published()
        if row["name"] == name
    )


def find_model(text: str) -> Architecture:
    """Read what a person typed as a model.

    In this order, so that one text always means one thing:

    1. `~/x`, `./x`, `../x`, `/x` and anything that ends in `.json` is a path, and only that;
    2. a catalogue name, its case and its dots, dashes, underscores and spaces forgiven, or the name
       under which the hub knows it; the catalogue wins over a file or folder of that name;
    3. a file or folder that exists;
    4. `org/name`: a catalogue model that was published there, else the hub's config.json, from the
       local cache or over https.

    A config that describes exactly what a catalogue entry does has the entry's checkpoint facts.

    Raises:
        UnknownName: nothing has that name; the message has the nearest ones.
        BadInput: the file cannot be used, or the hub does not give it.

    >>> find_model("llama3_70b").name, find_model("meta-llama/Meta-Llama-3-70B").name
    ('Llama-3-70B', 'Llama-3-70B')
    """
    text = text.strip()
    if not text:
        raise BadInput("no model is named; `muster models` lists them")
    if text.startswith(("~", "./", "../", "/")) or text in {".", ".."} or text.endswith(".json"):
        return _from_path(text)
    named = _by_name(text)
    if named is not None:
        return named
    if _exists(text):
        return _from_path(text)
    if is_hub_id(text):
        entry = _hub_ids().get(text.lower())
        if entry is not None:
            return catalogue_model(entry)
        return _with_facts(architecture_from_config(hub_config(text), name=text))
    raise UnknownName(
        "model",
        text,
        [name.lower() for name in (*catalogue_names(), *SAME_AS)],
        note="`muster models` lists all; or give the path of a config.json, or a Hub id (org/name)",
    )


def _by_name(text: str) -> Architecture | None:
    wanted = _plain(text)
    for name, same in SAME_AS.items():
        if wanted == _plain(name):
            note = f"{name} has the architecture of {same}, whose config is the one read"
            model = catalogue_model(same)
            return replace(model, name=name, notes=(*model.notes, note))
    names = {_plain(name): name for name in _files()}
    if wanted in names:
        return catalogue_model(names[wanted])
    if "/" in text or not wanted:
        return None
    hub_names = {_plain(hub_id.split("/")[-1]): name for hub_id, name in _hub_ids().items()}
    return catalogue_model(hub_names[wanted]) if wanted in hub_names else None


def _from_path(text: str) -> Architecture:
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise BadInput(f"{shorten(text)} names no home directory") from None
    config = read_config(path)
    folder = path.resolve().parent if path.name == "config.json" else path.resolve()
    name = printable(Path(folder.name.removesuffix(".json") or path.name))
    return _with_facts(architecture_from_config(config, name=name))


def _with_facts(architecture: Architecture) -> Architecture:
    """Add what is known of the checkpoint of a catalogue model that is exactly this one."""
    if not architecture.tied_embeddings:
        return architecture
    known = (catalogue_model(name) for name in _stores_tied_head())
    twin = any(_nameless(architecture) == _nameless(entry) for entry in known)
    return replace(architecture, stores_tied_head=twin)


def _nameless(architecture: Architecture) -> Architecture:
    return replace(architecture, name="", stores_tied_head=False)


def _plain(name: str) -> str:
    """A name without case and punctuation: `Llama-3.1_8B` and `llama318b` are one."""
    return re.sub(r"[\s._-]", "", name.lower())


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key under which 2 comes before 10, and Falcon-7B before Falcon3-7B."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.findall(r"\d+|[a-z]+|[^a-z\d]+", name.lower())
    ]


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


@cache
def _files() -> Mapping[str, Traversable]:
    folder = files("muster.models").joinpath("data/configs")
    return {
        entry.name.removesuffix(".json"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".json")
    }


def _config(name: str) -> Mapping[str, object]:
    return parse_config(_files()[name].read_bytes(), where=name)


@cache
def _hub_ids() -> Mapping[str, str]:
    """Hub id, in small letters, of each catalogue entry; a name's own entry wins over another's."""
    ids: dict[str, str] = {}
    for name in catalogue_names():
        provenance = _config(name).get("_provenance")
        hub_id = provenance.get("hf_id") if isinstance(provenance, Mapping) else None
        if isinstance(hub_id, str):
            own = _plain(hub_id.split("/")[-1]) == _plain(name)
            if own or hub_id.lower() not in ids:
                ids[hub_id.lower()] = name
    return ids


@cache
def _published() -> tuple[Mapping[str, str], ...]:
    text = files("muster.models").joinpath("data/published_counts.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def _stores_tied_head() -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(row["name"] for row in _published() if row["stores_tied_head"] == "yes")
    )
