"""The options of a command with many of them: kept as they were typed, read with their types."""

import re
from pathlib import Path

from muster.cli.paths import expanded
from muster.errors import BadInput
from muster.units import parse_count

# Options whose parameter has another name than they.
SPELLED = {"hardware": "--on", "folder": "--out", "initial": "--init"}


class Asked:
    """The options as they were typed, read with their types."""

    def __init__(self, options: dict[str, object]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        """Words, or None where the option was not given; blank ones are refused."""
        value = self._options[name]
        if value is not None and not str(value).strip():
            raise BadInput(f"{spelled(name)} is given and empty")
        return None if value is None else str(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Words of an option that may be given several times."""
        value = self._options[name]
        assert isinstance(value, tuple)
        if not all(str(each).strip() for each in value):
            raise BadInput(f"{spelled(name)} is given and empty")
        return tuple(str(each) for each in value)

    def flag(self, name: str) -> bool:
        """Whether a switch is on."""
        return bool(self._options[name])

    def path(self, name: str) -> Path | None:
        """A path, its `~` expanded."""
        value = self._options[name]
        assert value is None or isinstance(value, str)
        return None if value is None else expanded(value, spelled(name), "folder")

    def whole(self, name: str) -> int:
        """A number of at least 1 that has a default."""
        number = self.count(name)
        assert number is not None
        return number

    def count(self, name: str) -> int | None:
        """A number of at least 1, or None where the option was not given."""
        value = self._options[name]
        return None if value is None else parse_count(str(value), spelled(name))

    def natural(self, name: str) -> int:
        """A number of at least 0 that has a default."""
        text = str(self._options[name])
        if not re.fullmatch(r"\d{1,10}", text):
            raise BadInput(f"{spelled(name)} {text!r} is not a whole number of at least 0")
        return int(text)

    def number(self, name: str) -> float | None:
        """A number that click has read."""
        value = self._options[name]
        assert value is None or isinstance(value, float)
        return value


def spelled(name: str) -> str:
    """An option as it is typed.

    >>> spelled("save_every"), spelled("folder")
    ('--save-every', '--out')
    """
    return SPELLED.get(name, f"--{name.replace('_', '-')}")
