"""From a Hugging Face `config.json` to an `Architecture`.

    file -> JSON object -> the text decoder's own object -> its family's builder -> Architecture

A family that has no builder is refused by name: no count is better than one that only looks exact.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from muster.errors import BadInput, UnknownName, shorten
from muster.models.architecture import Architecture
from muster.models.defaults import class_defaults
from muster.models.families import BUILDERS, NESTED, REFUSED, SAME_CLASS
from muster.models.families.multimodal import outer_flag, uncounted_parts
from muster.models.reader import ConfigReader, shown_json

MAX_CONFIG_BYTES = 8 * 1024**2
MOST_OF_A_PATH = 200


def read_config(path: Path) -> dict[str, object]:
    """Read a `config.json` (or the one in a folder) as a JSON object.

    Raises:
        BadInput: no such file, a folder without one, not a regular file (a pipe or a device could
            block or never end), too large, not JSON, not an object.
    """
    where = printable(path)
    try:
        file = path / "config.json" if path.is_dir() else path
        if file is not path and not file.exists():
            raise BadInput(f"{where} is a folder without a config.json")
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{where} is not a regular file; give the path of a config.json")
        with file.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"no file {where}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot read {where}: {reason or error}") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise BadInput(
            f"{where} is larger than {MAX_CONFIG_BYTES // 1024**2} MiB; a config.json is a few kB"
        )
    return parse_config(content, where=where)


def printable(path: Path | str) -> str:
    """A path or a name as it is typed; quoted, escaped and cut where it leaves its line."""
    text = str(path)
    return text if text.isprintable() and len(text) <= MOST_OF_A_PATH else shorten(text)


def parse_config(content: bytes, *, where: str) -> dict[str, object]:
    """Parse the bytes of a config as one JSON object."""
    try:
        text = content.decode("utf-8-sig")
        config = json.loads(text, object_pairs_hook=partial(_object, where=where))
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
        raise BadInput(f"{where} holds {shown_json(config)}, not an object")
    return config


def _object(pairs: list[tuple[str, object]], *, where: str) -> dict[str, object]:
    """An object of JSON whose keys stand there once: of two values neither is to be preferred."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise BadInput(f"{where}: {shorten(key)} stands there twice; leave one of the two")
        found[key] = value
    return found


def architecture_from_config(config: Mapping[str, object], *, name: str) -> Architecture:
    """Build the architecture that a config describes.

    Args:
        config: the whole JSON object; a `text_config` inside it is found.
        name: what to call the model.

    Raises:
        BadInput: a key is missing or wrong, or the family is one that cannot be counted exactly.
    """
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise BadInput(f"{name}: model_type is {shown_json(model_type)}; it must be text")
    if model_type is None and {"cluster", "layout"} <= config.keys():
        raise BadInput(
            f"{name} is a plan, which muster verify, tune and train take; a model's config.json, "
            "folder or name goes here"
        )
    if model_type is None:
        raise BadInput(f"{name}: the config has no model_type; it says which model class it is for")
    if model_type in REFUSED:
        raise BadInput(f"{name}: {model_type} models are not supported: {REFUSED[model_type]}")
    text, text_type = _text_part(config, model_type, name)
    if text_type in REFUSED:
        raise BadInput(f"{name}: {text_type} models are not supported: {REFUSED[text_type]}")
    if text_type not in BUILDERS:
        raise UnknownName(
            "model_type",
            text_type,
            sorted(BUILDERS),
            note="no count is given, because a guess would only look exact",
        )
    reader = ConfigReader(text, class_defaults(SAME_CLASS.get(text_type, text_type)), where=name)
    if text is not config:
        reader = outer_flag(reader, config)
    architecture = BUILDERS[text_type](reader, name, config)
    notes = (*architecture.notes, *reader.notes, *uncounted_parts(config))
    return replace(
        architecture,
        family=text_type,
        filled_in=tuple(reader.filled_in.items()),
        notes=tuple(dict.fromkeys(notes)),
        config=config,
    )


def _text_part(
    config: Mapping[str, object], model_type: str, name: str
) -> tuple[Mapping[str, object], str]:
    """The object that describes the text decoder, and the class that reads it."""
    if model_type not in NESTED:
        return config, model_type
    key, inner_type = NESTED[model_type]
    inner = config.get(key)
    if inner is None and "hidden_size" in config:  # older files: the decoder's keys lie outside
        return config, inner_type
    if inner is None:
        inner = {}
    if not isinstance(inner, Mapping):
        raise BadInput(f"{name}: {key} is {shown_json(inner)}; it must be an object")
    named = inner.get("model_type", inner_type)
    return inner, named if isinstance(named, str) else inner_type
