"""Readings that many families share: attention heads, rotary embedding, windows."""

from muster.models.architecture import Rope
from muster.models.reader import ConfigReader


def head_dim(reader: ConfigReader, key: str = "head_dim") -> int:
    """H: explicit where the config gives one, else D / N rounded down as the classes do."""
    explicit = reader.optional_size(key)
    if explicit is not None:
        return explicit
    return reader.size("hidden_size") // reader.size("num_attention_heads")


def kv_heads(reader: ConfigReader) -> int:
    """K: null (or absent with a null default) means one KV head a query head."""
    heads = reader.size("num_attention_heads")
    kv = reader.optional_size("num_key_value_heads") or heads
    if heads % kv:
        reader.refuse(
            "num_key_value_heads", f"is {kv}, which does not divide num_attention_heads {heads}"
        )
    return kv


def rope(reader: ConfigReader) -> Rope:
    """Rotary embedding from new (`rope_parameters`) or old (`rope_theta`, `rope_scaling`) keys.

    The file's own keys win over the class's default theta, whichever place they stand in.
    """
    parameters = reader.mapping("rope_parameters") if reader.has("rope_parameters") else None
    scaling = reader.mapping("rope_scaling") if reader.has("rope_scaling") else None
    merged = {**(scaling or {}), **(parameters or {})}
    theta = merged.get("rope_theta")
    if not isinstance(theta, int | float) or isinstance(theta, bool):
        theta = reader.number("rope_theta" if reader.has("rope_theta") else "default_theta")
    kind = merged.get("rope_type", merged.get("type"))
    factor = merged.get("factor")
    return Rope(
        theta=float(theta),
        scaling=kind if isinstance(kind, str) and kind != "default" else None,
        factor=float(factor) if isinstance(factor, int | float) else None,
    )
