"""Files and folders that users name on the command line."""

from pathlib import Path
from typing import Any

import click

from muster.errors import BadInput, shorten


class NamedPath(click.ParamType):  # type: ignore[type-arg]
    """A path, its `~` expanded; a blank one is refused, which `Path` would take for this folder.

    Args:
        what: it names, for the message about a blank one.
    """

    name = "path"

    def __init__(self, what: str) -> None:
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Read one path.

        Raises:
            BadInput: it is blank, or starts with the home of a user that does not exist.
        """
        del ctx
        spelled = param.opts[0] if isinstance(param, click.Option) else "the first argument"
        return expanded(str(value), spelled, self._what)


def expanded(text: str, spelled: str, what: str) -> Path:
    """A path as it was typed, its `~` expanded.

    Args:
        text: as typed.
        spelled: the option that it was given to.
        what: it names.

    Raises:
        BadInput: it is blank, or starts with the home of a user that does not exist.
    """
    if not text.strip():
        raise BadInput(f"{spelled} {text!r} names no {what}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise BadInput(
            f"{spelled} {shorten(text)}: there is no home of {user}; write the whole path"
        ) from None
