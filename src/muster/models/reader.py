"""Typed reads of one config.json: every value checked, every filled-in default remembered.

Hugging Face's sense of a missing key: *absent* takes the model class's own default, *null* is a
value of its own (often "derive it"). The two differ, so the reader never confuses them.
"""

import json
import math
from collections.abc import Mapping
from typing import Never

from muster.errors import MOST_CHARACTERS_SHOWN, BadInput, shorten

MAX_SIZE = 10**9
MAX_LAYERS = 10_000


def shown_json(value: object) -> str:
    """A value as its file has it, on one short line: null and true, not Python's names of them.

    >>> shown_json(None), shown_json(True), shown_json([1, "a"])
    ('null', 'true', '[1, "a"]')
    """
    if isinstance(value, str):
        return shorten(value)
    text = json.dumps(value, ensure_ascii=True, default=repr)
    return text if len(text) <= MOST_CHARACTERS_SHOWN else f"{text[: MOST_CHARACTERS_SHOWN - 3]}..."


class ConfigReader:
    """Reads keys of a config under the defaults of its model class.

    Attributes:
        filled_in: keys that were read and absent, with the default that was used.
        notes: remarks that the family's builder leaves for the user.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        defaults: Mapping[str, object],
        *,
        where: str,
    ) -> None:
        """Wrap `config`.

        Args:
            config: the JSON object that describes the text decoder.
            defaults: the class's own defaults; `attribute_map` holds its other names for keys.
            where: what to call the config in messages.
        """
        self._config = config
        self._defaults = defaults
        renames = defaults.get("attribute_map")
        self._other_names = _both_ways(renames if isinstance(renames, Mapping) else {})
        self.where = where
        self.filled_in: dict[str, object] = {}
        self.notes: list[str] = []

    def narrowed(self, overrides: Mapping[str, object]) -> "ConfigReader":
        """A reader of the same file with some keys replaced; it fills the same `filled_in`."""
        reader = ConfigReader({**self._config, **overrides}, self._defaults, where=self.where)
        reader.filled_in, reader.notes = self.filled_in, self.notes
        return reader

    def fill(self, key: str, value: object) -> None:
        """Remember that the config lacks `key` and that the class's own `value` was used."""
        self.filled_in[key] = value

    def default(self, key: str) -> object:
        """The class's own default of a key, or None; it does not count as filled in."""
        return self._defaults.get(key)

    def has(self, key: str) -> bool:
        """Say whether the file itself has the key (null counts as having it)."""
        return self._name_in_file(key) is not None

    def raw(self, key: str) -> object:
        """The value of the file, or else the class's default, or else None."""
        name = self._name_in_file(key)
        if name is not None:
            return self._config[name]
        for candidate in self._names(key):
            if candidate in self._defaults:
                self.filled_in[key] = self._defaults[candidate]
                return self._defaults[candidate]
        return None

    def size(self, key: str) -> int:
        """A whole number of at least 1: a dimension or a count of things."""
        value = self.optional_size(key)
        if value is None:
            self.refuse(key, "is missing, and its model class has no default for it")
        return value

    def optional_size(self, key: str) -> int | None:
        """A whole number of at least 1, or None where the file or the default says null."""
        value = self.optional_count(key)
        if value == 0:
            self.refuse(key, "is 0; it must be at least 1")
        return value

    def count(self, key: str) -> int:
        """A whole number of at least 0."""
        value = self.optional_count(key)
        if value is None:
            self.refuse(key, "is missing, and its model class has no default for it")
        return value

    def optional_count(self, key: str) -> int | None:
        """A whole number of at least 0, or None where the file or the default says null."""
        value = self.raw(key)
        return None if value is None else self._whole(key, value)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """The number of layers."""
        number = self.size(key)
        if number > MAX_LAYERS:
            self.refuse(key, f"is {number:,}; no decoder has more than {MAX_LAYERS:,} layers")
        return number

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.raw(key)
        if isinstance(value, str):
            self.refuse(key, f"is the text {shown_json(value)}; write the number without quotes")
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(key, f"is {shown_json(value)}, not a number")
        try:
            as_float = float(value)
        except OverflowError:
            as_float = math.inf
        if not math.isfinite(as_float):
            self.refuse(key, f"is {shown_json(value)}, not a finite number")
        return as_float

    def flag(self, key: str) -> bool:
        """True or false; null and a missing key without a default read as false."""
        value = self.raw(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.refuse(key, f"is {shown_json(value)}; it must be true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string, or None."""
        value = self.raw(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, f"is {shown_json(value)}; it must be text")
        return value

    def sizes(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers of at least 0, or None."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.refuse(key, f"is {shown_json(value)}; it must be a list of whole numbers")
        return tuple(self._whole(key, item) for item in value)

    def texts(self, key: str, length: int) -> tuple[str, ...] | None:
        """A list of `length` strings (one a layer), or None."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, f"is {shown_json(value)}; it must be a list of names")
        if len(value) != length:
            self.refuse(key, f"has {len(value)} entries for {length} layers")
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, object] | None:
        """A JSON object, or None."""
        value = self.raw(key)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(key, f"is {shown_json(value)}; it must be an object")
        return value

    def refuse(self, key: str, problem: str) -> Never:
        """Raise the one-line error about a key."""
        raise BadInput(f"{self.where}: {key} {problem}")

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, str):
            self.refuse(key, f"is the text {shown_json(value)}; write the number without quotes")
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"is {shown_json(value)}; it must be a whole number")
        if value < 0:
            self.refuse(key, f"is {shown_json(value)}; it must not be negative")
        if value > MAX_SIZE:
            self.refuse(key, f"is {shown_json(value)}; no model is that large")
        return value

    def _names(self, key: str) -> tuple[str, ...]:
        return (key, *self._other_names.get(key, ()))

    def _name_in_file(self, key: str) -> str | None:
        return next((name for name in self._names(key) if name in self._config), None)


def _both_ways(renames: Mapping[object, object]) -> dict[str, tuple[str, ...]]:
    """Each name's other names: a class accepts its own name of a key and the common one."""
    others: dict[str, tuple[str, ...]] = {}
    for common, own in renames.items():
        if isinstance(common, str) and isinstance(own, str):
            others[common] = (*others.get(common, ()), own)
            others[own] = (*others.get(own, ()), common)
    return others
