"""One builder a model class: from its config's keys to an `Architecture`.

Add a family: write `build(reader, name, config) -> Architecture` in the module of its kin, and
name its `model_type` there. Read keys only through the reader, which fills in class defaults.
"""

from collections.abc import Callable, Mapping

from muster.models.architecture import Architecture
from muster.models.families import llama
from muster.models.reader import ConfigReader

type Builder = Callable[[ConfigReader, str, Mapping[str, object]], Architecture]

BUILDERS: dict[str, Builder] = {**llama.BUILDERS}

# model_type of a wrapper -> key that holds its text decoder's config, and that decoder's class.
NESTED: dict[str, tuple[str, str]] = {}

# model_type -> why its parameters cannot be counted exactly here.
REFUSED: dict[str, str] = {}
