"""One builder a model class: from its config's keys to an `Architecture`.

Add a family: a row of `Traits` in the module of its kin, or a function
`build(reader, name, config) -> Architecture` under its `model_type` in that module's `BUILDERS`.
Read keys only through the reader, which fills in class defaults.
"""

from muster.models.families import (
    classic,
    decilm,
    deepseek,
    gemma,
    hybrid,
    llama,
    moe,
    multimodal,
    nemotron_h,
)
from muster.models.families.dense import Builder

__all__ = ["BUILDERS", "NESTED", "REFUSED", "SAME_CLASS", "Builder"]

BUILDERS: dict[str, Builder] = {
    **llama.BUILDERS,
    **classic.BUILDERS,
    **decilm.BUILDERS,
    **moe.BUILDERS,
    **deepseek.BUILDERS,
    **gemma.BUILDERS,
    **hybrid.BUILDERS,
    **nemotron_h.BUILDERS,
    **multimodal.BUILDERS,
}

# model_type of a wrapper -> key that holds its text decoder's config, and that decoder's class.
NESTED: dict[str, tuple[str, str]] = {**multimodal.NESTED}

# model_type -> why its parameters cannot be counted exactly here.
REFUSED: dict[str, str] = {
    **llama.REFUSED,
    **deepseek.REFUSED,
    **multimodal.REFUSED,
}

# model_type -> the one whose class, and so whose defaults, it is published for.
SAME_CLASS: dict[str, str] = {**deepseek.SAME_CLASS}
