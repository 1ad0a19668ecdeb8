"""Whether a result that was kept is one: its values are of the kinds that a compilation has.

Another version of muster may have written it, or another hand.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

type Status = Literal["compiled", "too_large", "refused", "died", "bad_input"]
STATUSES = get_args(Status.__value__)
COORDINATES = 5  # x, y, z, core, slice
_TEXTS = ("message", "detail", "space", "ended_by", "note")
_NUMBERS = ("needed", "usable", "trace_seconds", "compile_seconds", "peak_rss_bytes")


def is_sound(result: Mapping[str, Any]) -> bool:
    """Whether the values of a result are of the kinds that a compilation has."""
    places = result.get("coordinates", [])
    return (
        result["status"] in STATUSES
        and all(isinstance(result.get(key, ""), str) for key in _TEXTS)
        and all(_is_number(result.get(key, 0)) for key in _NUMBERS)
        and _holds(result.get("cost", {}), _is_number)
        and _holds(result.get("mesh", {}), _is_whole)
        and all(_holds(result.get(key, {}), _is_text) for key in ("versions", "options"))
        and (result["status"] != "compiled" or _holds(result["memory"], _is_whole))
        and isinstance(places, list)
        and all(isinstance(place, list) and all(map(_is_whole, place)) for place in places)
        and (result["status"] != "compiled" or _is_a_mesh(result.get("mesh", {}), places))
    )


def _is_a_mesh(ways: Mapping[str, int], places: list[list[int]]) -> bool:
    """Whether there is a place for every device of the mesh; some are kept without either."""
    if not ways and not places:
        return True
    alike = all(len(place) == COORDINATES for place in places)
    return alike and min(ways.values(), default=0) > 0 and math.prod(ways.values()) == len(places)


def _holds(value: object, of_kind: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(of_kind, value.values()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
