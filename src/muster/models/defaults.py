"""What an absent key means to each model class."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def class_defaults(model_type: str) -> Mapping[str, object]:
    """The defaults of a model class, by Hugging Face's own code (see the data file's source)."""
    text = files("muster.models").joinpath("data/class_defaults.json").read_text("utf-8")
    defaults: Mapping[str, object] = json.loads(text)["defaults"].get(model_type, {})
    return defaults
