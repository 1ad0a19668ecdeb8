"""Readings that many families share: attention heads, biases, rotary embedding."""

from collections.abc import Mapping

from muster.errors import shorten
from muster.models.architecture import Rope
from muster.models.reader import ConfigReader

# A yes or no that a family's code fixes, or the config key that decides it.
type Switch = bool | str


def is_on(reader: ConfigReader, switch: Switch) -> bool:
    """Read a switch: itself where it is fixed, else the flag under that key."""
    return switch if isinstance(switch, bool) else reader.flag(switch)


def head_dim(reader: ConfigReader, key: str = "head_dim") -> int:
    """H: explicit where the config gives one, else D / N rounded down as the classes do."""
    return reader.optional_size(key) or derived_head_dim(reader)


def derived_head_dim(reader: ConfigReader) -> int:
    """H of the classes that know no explicit one: D / N rounded down."""
    d_model, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    if heads > d_model:
        reader.refuse("num_attention_heads", f"is {heads:,}, more than hidden_size {d_model:,}")
    return d_model // heads


def whole_head_dim(reader: ConfigReader) -> int:
    """H of the classes that insist that N divides D."""
    d_model, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    if d_model % heads:
        reader.refuse(
            "num_attention_heads", f"is {heads:,}, which does not divide hidden_size {d_model:,}"
        )
    return d_model // heads


def kv_heads(reader: ConfigReader, key: str = "num_key_value_heads") -> int:
    """K: null (or absent with a null default) means one KV head a query head."""
    heads = reader.size("num_attention_heads")
    kv = reader.optional_size(key) or heads
    if heads % kv:
        reader.refuse(key, f"is {kv:,}, which does not divide num_attention_heads {heads:,}")
    return kv


def as_many_kv_heads(reader: ConfigReader) -> int:
    """K of the classes that have one KV head a query head, whatever the file says."""
    return reader.size("num_attention_heads")


def rope(
    reader: ConfigReader,
    *,
    head_dim: int | None = None,
    usual: Mapping[str, object] | None = None,
    theta_key: str = "rope_theta",
    share_key: str = "partial_rotary_factor",
) -> Rope:
    """Rotary embedding from new (`rope_parameters`) or old (`rope_theta`, `rope_scaling`) keys.

    What the file states wins, whichever place it stands in; then `usual`, then the class's own
    theta, which is noted as filled in. A class of unknown theta is an error, never a silent 10000.
    Where the layer types have parameters of their own, those of full attention are the ones read.

    Args:
        reader: the config.
        head_dim: H, of which `rotary_dim` is the rotated part; None leaves that open.
        usual: what the class takes for `rope_parameters` where a file states none at all.
        theta_key: the old name of theta at the top of the file.
        share_key: the name of the share of H that is rotated.
    """
    stated = _stated(reader)
    if not stated and usual is not None and not reader.has(theta_key):
        reader.fill("rope_parameters", dict(usual))
        stated = usual
    full = _of_layer_type(stated, "full_attention")
    theta = _theta(reader, full, theta_key)
    sliding = _of_layer_type(stated, "sliding_attention")
    sliding_theta = _positive(reader, sliding, "rope_theta")
    share = _positive(reader, full, "partial_rotary_factor")
    if share is None and reader.raw(share_key) is not None:
        share = reader.number(share_key)
    return Rope(
        theta=theta,
        scaling=_kind(reader, full),
        factor=_positive(reader, full, "factor"),
        rotary_dim=None if head_dim is None else _rotary_dim(reader, head_dim, share, share_key),
        sliding_theta=None if sliding_theta == theta else sliding_theta,
    )


def _stated(reader: ConfigReader) -> Mapping[str, object]:
    """What the file itself says under the new and the old key; null and {} say nothing."""
    new = reader.mapping("rope_parameters") if reader.has("rope_parameters") else None
    old = reader.mapping("rope_scaling") if reader.has("rope_scaling") else None
    return {**(new or {}), **(old or {})}


def _of_layer_type(stated: Mapping[str, object], layer_type: str) -> Mapping[str, object]:
    """The parameters of one layer type; all of them where they are not told apart."""
    if any(isinstance(value, Mapping) for value in stated.values()):
        inner = stated.get(layer_type)
        return inner if isinstance(inner, Mapping) else {}
    return stated


def _theta(reader: ConfigReader, parameters: Mapping[str, object], key: str) -> float:
    stated = _positive(reader, parameters, "rope_theta")
    if stated is not None:
        return stated
    if reader.has(key):
        theta = reader.number(key)
    else:
        theta = _class_theta(reader)
        reader.fill(key, theta)
    if theta <= 0:
        reader.refuse(key, f"is {theta:g}; it must be positive")
    return theta


def _class_theta(reader: ConfigReader) -> float:
    """The class's own theta; of a class that has two, that of its full-attention layers."""
    default = reader.default("default_theta")
    if isinstance(default, Mapping):
        default = default.get("global")
    if isinstance(default, bool) or not isinstance(default, int | float):
        reader.refuse("rope_theta", "is missing, and its model class has no default for it")
    return float(default)


def _kind(reader: ConfigReader, parameters: Mapping[str, object]) -> str | None:
    """How positions are rescaled; `rope_type` is the new name of `type`, and wins over it."""
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind is not None and not isinstance(kind, str):
        reader.refuse("rope_type", f"is {shorten(kind)}; it must be text")
    return None if kind == "default" else kind


def _positive(reader: ConfigReader, parameters: Mapping[str, object], key: str) -> float | None:
    value = parameters.get(key)
    if value is None:
        return None
    number = reader.narrowed({key: value}).number(key)
    if number <= 0:
        reader.refuse(key, f"is {number:g}; it must be positive")
    return number


def _rotary_dim(reader: ConfigReader, head_dim: int, share: float | None, key: str) -> int:
    if share is None:
        return head_dim
    if not 0 < share <= 1:
        reader.refuse(key, f"is {share:g}; it is the share of a head that is rotated, 0 to 1")
    return int(head_dim * share)
