"""Every model class that can be built has its class's defaults, for keys that files leave out."""

import pytest

from muster.models.defaults import class_defaults
from muster.models.families import BUILDERS, SAME_CLASS

# Published with their own code, which no release of transformers has: no defaults to fill in.
OWN_CODE = {"nemotron-nas"}


@pytest.mark.parametrize("model_type", sorted(BUILDERS))
def test_a_class_has_its_defaults(model_type: str) -> None:
    defaults = class_defaults(SAME_CLASS.get(model_type, model_type))
    assert bool(defaults) is (model_type not in OWN_CODE)
