"""What a run recomputes, from the words of its source.

    words                                 kept for the backward pass          computed again
    none                                  everything                          nothing
    full, SAVE_NOTHING, (every layer)     the layer's input                   the layer
    minimal (MaxText)                     every matmul's output               attention's kernel
    minimal_flash, minimal_with_context   that, and the kernel's output       elementwise
    custom(q=device, mlpwo=offload, ...)  the named tensors, here or on host  the rest
    selective attention, core attention   all but attention's inside          attention's inside
    selective op (torchtitan)             every second matmul, attention      K, out, up
    selective (some layers)               all, or a layer's input             those layers

MaxText's names (`decoder_layer_input`, `query_proj`, ...) are those of its checkpoint policies.
XLA drops what nothing reads, so the MLP's last matmul never runs again there; PyTorch and Megatron
run whole layers again.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from muster.roofline.remat import Remat

MATMULS = ("query", "key", "value", "mixing", "out", "gate", "up", "down")
_QKV = frozenset({"query", "key", "value"})
_PARTS = {
    "input": ("input",),
    "decoder_layer_input": ("input",),
    "context": ("mixing",),
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "qkv": ("query", "key", "value"),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "out": ("out",),
    "o": ("out",),
    "mlpwi": ("gate", "up"),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "mlpwo": ("down",),
    "mlp": ("gate", "up", "down"),
}
_WHOLE = r"\bfull\b|save_nothing|every layer|\bblock\b|uniform"
_PLACES = {"offload", "device", "remat", "host"}
_NAMED = {
    "save_dot_except_mlp": (*_QKV, "out"),
    "save_dot_except_mlpwi": (*_QKV, "out", "down"),
    "save_dot_with_context_except_mlp": (*_QKV, "mixing", "out"),
    "save_qkv_proj": tuple(_QKV),
    "save_out_proj": ("out",),
}


@dataclass(frozen=True, kw_only=True)
class RematChoice:
    """What one run keeps and computes again.

    Attributes:
        policy: the nearest of muster's own policies.
        exact: whether that policy is what ran, rather than the nearest to it.
        rerun: matmuls of a layer that run again, of `MATMULS`; `mixing` is attention's kernel.
        offloaded: what waits in the host's memory, of `MATMULS` and `input`.
        layers_share: share of the layers that this holds for; the others keep everything.
        raw: the source's words.
    """

    policy: Remat
    rerun: frozenset[str]
    offloaded: frozenset[str] = frozenset()
    layers_share: float = 1.0
    exact: bool = True
    raw: str = ""


def read_remat(text: str, *, xla: bool, share: float | None = None) -> RematChoice | None:
    """Read a remat policy; None where the words are not understood.

    Args:
        text: the source's words; blank where nothing is said, which is read as `none`.
        xla: whether XLA compiled the step (and so dropped what nothing reads).
        share: of the layers that a merely "selective" policy recomputes, where it can be told.

    >>> read_remat("custom(q/k/v/out=device)", xla=True).policy
    <Remat.OUTPUTS: 'outputs'>
    >>> sorted(read_remat("selective attention recompute", xla=False).rerun)
    ['mixing']
    """
    low = " ".join(text.lower().split())
    if low.startswith("custom"):
        return _custom(low, text)
    if low in _NAMED:
        return _from_kept(_NAMED[low], (), text)
    if "qkv_proj_offloaded" in low:
        return _from_kept((), _QKV, text)
    return _by_word(low, text, xla=xla, share=share)


def _by_word(low: str, raw: str, *, xla: bool, share: float | None) -> RematChoice | None:
    """The first rule whose words stand in the text."""
    whole_layer = frozenset(MATMULS) - ({"down"} if xla else set())
    mixing = frozenset({"mixing"})
    nothing: frozenset[str] = frozenset()
    host = nothing
    if not low or re.match(r"(none|no|off|disabled)\b", low):
        host = frozenset({"input"}) if "offload" in low else nothing
        policy, rerun, exact, part = Remat.NONE, nothing, not host, 1.0
    elif "offload" in low:
        host = frozenset(MATMULS) - mixing
        policy, rerun, exact, part = Remat.OFFLOAD, mixing, True, 1.0
    else:
        rules: tuple[tuple[str, Remat, frozenset[str], bool, float], ...] = (
            (r"minimal.*(flash|context)", Remat.MINIMAL, nothing, True, 1.0),
            (r"minimal|save_dots", Remat.MINIMAL, mixing, False, 1.0),
            (r"core|selective.*att", Remat.NONE, mixing, False, 1.0),
            (r"selective.*\bop\b", Remat.MINIMAL, frozenset({"key", "out", "up"}), False, 1.0),
            (r"selective", Remat.FULL, whole_layer, False, 0.5 if share is None else share),
            (_WHOLE, Remat.FULL, whole_layer, True, 1.0),
        )
        found = next((rule for rule in rules if re.search(rule[0], low)), None)
        if found is None:
            return None
        _, policy, rerun, exact, part = found
    return RematChoice(
        policy=policy, rerun=rerun, offloaded=host, layers_share=part, exact=exact, raw=raw
    )


def share_from_flops(text: str, mfu_percent: float | None) -> float | None:
    """Share of the layers recomputed, from published hardware and model FLOPs utilizations.

    A whole layer again is a third more: HFU / MFU = 1 + share / 3.

    >>> round(share_from_flops("HFU (PyTorch FLOP counter) 68%", 57), 2)
    0.58
    """
    match = re.search(r"\bHFU\b[^0-9;]*([0-9]+(?:\.[0-9]+)?)\s*%", text)
    if not match or not mfu_percent:
        return None
    return min(1.0, max(0.0, 3 * (float(match[1]) / mfu_percent - 1)))


def _custom(low: str, raw: str) -> RematChoice | None:
    """Read MaxText's `custom(...)`: `name=place` pairs, or `place: names`."""
    inside = low.removeprefix("custom").strip(" ()")
    device: set[str] = set()
    host: set[str] = set()
    default = None
    if ":" in inside:
        default, inside = (part.strip() for part in inside.split(":", maxsplit=1))
    for item in inside.split(","):
        names, _, said = item.partition("=")
        place = said.strip() or default
        tensors = _tensors(names)
        if place not in _PLACES or tensors is None:
            return None
        if place == "device":
            device |= tensors
        elif place != "remat":
            host |= tensors
    return _from_kept(device, host, raw)


def _tensors(names: str) -> set[str] | None:
    """The tensors that `q/k/v proj`, `query_proj` or `mlpwo` stand for."""
    found: set[str] = set()
    for name in names.replace(" and ", "/").split("/"):
        key = re.sub(r"[\s_]*proj(ection)?$", "", name.strip()).strip()
        if key not in _PARTS:
            return None
        found.update(_PARTS[key])
    return found


def _from_kept(device: Iterable[str], host: Iterable[str], raw: str) -> RematChoice:
    """The choice that keeps these tensors beside the layer's input, compiled by XLA."""
    offloaded = frozenset(host)
    kept = frozenset(device) | offloaded
    rerun = frozenset(MATMULS) - kept - {"down"}
    if kept >= {"gate", "up"} | _QKV:
        policy = Remat.OFFLOAD if offloaded & {"gate", "up"} else Remat.MINIMAL
    elif kept & {"out", "mixing"}:
        policy = Remat.OUTPUTS
    else:
        policy = Remat.FULL
    exact = policy is Remat.FULL and not kept - {"input"} and not offloaded
    return RematChoice(policy=policy, rerun=rerun, offloaded=offloaded, exact=exact, raw=raw)
