"""From a Hugging Face `config.json` to an `Architecture`.

    file -> JSON object -> the text decoder's own object -> its family's builder -> Architecture

A family that has no builder is refused by name: no count is better than one that only looks exact.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from muster.errors import BadInput, UnknownName, shorten
from muster.models.architecture import Architecture
from muster.models.families import BUILDERS, NESTED, REFUSED
from muster.models.reader import ConfigReader

MAX_CONFIG_BYTES = 8 * 1024**2


def read_config(path: Path) -> dict[str, object]:
    """Read a `config.json` (or the one in a folder) as a JSON object.

    Raises:
        BadInput: no such file, a folder without one, too large, not JSON, not an object.
    """
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise BadInput(f"{path} is a folder without a config.json")
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"no file {path}") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise BadInput(
            f"{path} is larger than {MAX_CONFIG_BYTES // 1024**2} MiB; a config.json is a few kB"
        )
    return parse_config(content, where=str(path))


def parse_config(content: bytes, *, where: str) -> dict[str, object]:
    """Parse the bytes of a config as one JSON object."""
    try:
        config = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadInput(f"{where} is not UTF-8 text; a config.json is") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{where} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError):
        raise BadInput(
            f"{where} is not usable JSON: nested too deep or a number too long"
        ) from None
    if not isinstance(config, dict):
        raise BadInput(f"{where} holds a JSON {type(config).__name__}, not an object")
    return config


def architecture_from_config(config: Mapping[str, object], *, name: str) -> Architecture:
    """Build the architecture that a config describes.

    Args:
        config: the whole JSON object; a `text_config` inside it is found.
        name: what to call the model.

    Raises:
        BadInput: a key is missing or wrong, or the family is one that cannot be counted exactly.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise BadInput(f"{name}: the config has no model_type; it says which model class it is for")
    if model_type in REFUSED:
        raise BadInput(f"{name}: {model_type} models are not supported: {REFUSED[model_type]}")
    text, text_type = _text_part(config, model_type, name)
    if text_type in REFUSED:
        raise BadInput(f"{name}: {text_type} models are not supported: {REFUSED[text_type]}")
    if text_type not in BUILDERS:
        raise UnknownName("model_type", text_type, sorted(BUILDERS))
    reader = ConfigReader(text, class_defaults(text_type), where=name)
    return BUILDERS[text_type](reader, name, config)


@cache
def class_defaults(model_type: str) -> Mapping[str, object]:
    """What an absent key means to a model class, by Hugging Face's own code (see the data file)."""
    text = files("muster.models").joinpath("data/class_defaults.json").read_text("utf-8")
    defaults: Mapping[str, object] = json.loads(text)["defaults"].get(model_type, {})
    return defaults


def _text_part(
    config: Mapping[str, object], model_type: str, name: str
) -> tuple[Mapping[str, object], str]:
    """The object that describes the text decoder, and the class that reads it."""
    if model_type not in NESTED:
        return config, model_type
    key, inner_type = NESTED[model_type]
    inner = config.get(key, {})
    if not isinstance(inner, Mapping):
        raise BadInput(f"{name}: {key} is {shorten(inner)}; it must be an object")
    named = inner.get("model_type", inner_type)
    return inner, named if isinstance(named, str) else inner_type
