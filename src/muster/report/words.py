"""Words that the terminal and the page share: bounds, terms of a step, policies, counts."""

import re

from muster.hardware import Chip
from muster.planner.plan import Plan
from muster.planner.search import Choice
from muster.roofline.remat import Remat
from muster.roofline.software import default_software
from muster.sharding.mesh import Layout
from muster.units import format_seconds

BOUNDS = {
    "compute": "compute-bound",
    "hbm": "bound by HBM",
    "ici": "bound by ICI",
    "dcn": "bound by DCN",
    "nvlink": "bound by NVLink",
    "network": "bound by the network between nodes",
    "pipeline": "bound by the pipeline's bubble",
}
SHORT_BOUNDS = {
    "compute": "compute",
    "hbm": "HBM",
    "ici": "ICI",
    "dcn": "DCN",
    "nvlink": "NVLink",
    "network": "network",
    "pipeline": "bubble",
}
STEP_TERMS = {
    "compute": ("math", "matmuls and attention, with what is computed again"),
    "hbm": ("HBM", "norms, activations, loss, optimizer: bytes through HBM"),
    "fsdp": ("fsdp", "weights gathered, gradients scattered"),
    "tensor": ("tensor", "activations between tensor-parallel chips"),
    "sequence": ("sequence", "keys and values"),
    "expert": ("expert", "tokens to experts and back"),
    "data": ("data", "gradients between replicas"),
    "dcn": ("dcn", "gradients between slices"),
    "bubble": ("bubble", "stages of the pipeline that wait for others"),
    "host": ("host", "waiting for the slowest host"),
}
OFFLOADED = "activations to the host's memory and back, and waiting for the slowest host"
# What the backward pass computes again under a policy, in a few words.
REMAT = {
    Remat.NONE: "nothing is computed again",
    Remat.MINIMAL: "norms and activation functions are computed again",
    Remat.OUTPUTS: "all but a layer's input and attention's output is computed again",
    Remat.FULL: "all but a layer's input is computed again",
    Remat.OFFLOAD: "as minimal, and what is kept waits in the host's memory",
}
BUT_PRODUCTS = "only RoPE and activation functions are computed again"
WHOLE_LAYER = "every layer runs again whole, as the software on GPUs does"
VIRTUAL_STAGES = (
    "virtual stages: each chip of a pipeline holds so many separate pieces of the layers, which "
    "shortens its bubble"
)
# A space that no line may break at: of Unicode's private use, for rich breaks at U+00A0 too.
GLUE = "\ue000"
_UNITS = (
    r"(?:[kMGTPEZ]?B(?:/s)?|[kMGTP]?FLOPs?(?:/s)?|[kMBTP]|us|ms|s|min|h|days?|years?|chips?|GPUs?"
    r"|sequences?|tokens?|microbatch(?:es)?|stages?|slices?|ways?|steps?|axes|usable)"
)
_NUMBER_AND_UNIT = re.compile(rf"(?<=[\d)]) (?={_UNITS}(?![\w/]))")
_AXIS_AND_WAYS = re.compile(
    r"(?<=\b(?:data|fsdp)) (?=\d)|(?<=\bsequence) (?=\d)|(?<=\bexpert) (?=\d)|(?<=\btensor) (?=\d)"
    r"|(?<=\bstage) (?=\d)|(?<=\bslice) (?=\d)|(?<=\bremat) (?=\w)"
)
# `F = 28,672`
_LETTER_AND_VALUE = re.compile(r"(?<=\b[A-Z]) = (?=\d)|(?<=_[XY]) = (?=\d)")


def glued(text: str) -> str:
    """The text with numbers that no line end parts from their units.

    >>> glued("375 ms on 8 chips").count(GLUE), glued("data 4 x fsdp 64").count(GLUE)
    (2, 2)
    """
    text = _AXIS_AND_WAYS.sub(GLUE, _NUMBER_AND_UNIT.sub(GLUE, text))
    return _LETTER_AND_VALUE.sub(f"{GLUE}={GLUE}", text)


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "chip"), counted(8960, "chip")
    ('1 chip', '8,960 chips')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def layout_text(layout: Layout) -> str:
    """A layout with its microbatches and pieces of the pipeline."""
    return f"{layout}{pieces(layout)}"


def pieces(layout: Layout) -> str:
    """What a layout says beside its ways: microbatches, and pieces of layers a stage."""
    parts = []
    if layout.microbatches > 1:
        parts.append(f"{layout.microbatches} microbatches")
    if layout.virtual_stages > 1:
        parts.append(f"{layout.virtual_stages} virtual stages")
    return "".join(f", {part}" for part in parts)


def remat_text(remat: Remat, chip: Chip) -> str:
    """What a policy computes again with the chip's usual software."""
    software = default_software(chip)
    if remat is Remat.NONE and not software.keeps_products:
        return BUT_PRODUCTS
    whole = software.whole_layer
    return WHOLE_LAYER if whole and remat in {Remat.OUTPUTS, Remat.FULL} else REMAT[remat]


def term_text(term: str, choice: Choice) -> tuple[str, str]:
    """Label and remark of a term of a choice's step."""
    label, remark = STEP_TERMS[term]
    return label, OFFLOADED if term == "host" and choice.remat.on_host else remark


def training_lines(plan: Plan) -> tuple[str, ...]:
    """Whether `muster train` can carry the plan out, why not, and what it could instead.

    Nothing where the plan does not fit, which stands at the top.
    """
    if not plan.fits:
        return ()
    if not plan.obstacles:
        return ("`muster train plan.json` carries this plan out; `--out plan.json` keeps it",)
    lines = tuple(f"not here: {obstacle}" for obstacle in plan.obstacles)
    if plan.trainable is None:
        return lines
    instead = plan.trainable
    slower = instead.seconds / plan.choice.seconds - 1
    return (
        *lines,
        f"the best that it can: {instead.layout}, remat {instead.remat.value}; predicted step "
        f"{format_seconds(instead.seconds)} ({slower:+.1%})",
    )
