"""Bytes of a file that the user names, without waiting for what never comes or never ends."""

import stat
from pathlib import Path

from muster.errors import BadInput
from muster.models.hf_config import printable

# Pipes that a shell opens for a command, such as <(...), end; one by another name may never.
_OF_THE_SHELL = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


def read_given(path: Path, *, most_bytes: int, kind: str) -> bytes:
    """What a file holds.

    Args:
        path: a file, or a pipe that the shell gives.
        most_bytes: it may have.
        kind: what it should be, for messages: "plan".

    Raises:
        BadInput: there is no such file, it is a folder, a device or a pipe that nobody may write
            to, it cannot be read, or it is too large.
    """
    where = printable(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise BadInput(f"{where} is a folder; name the {kind}'s file")
        pipe = stat.S_ISFIFO(mode) and str(path).startswith(_OF_THE_SHELL)
        if not stat.S_ISREG(mode) and not pipe:
            raise BadInput(f"{where} is a device or a pipe; name the {kind}'s file")
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise BadInput(f"no file {where}") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot read {where}: {said}") from None
    if len(content) > most_bytes:
        raise BadInput(f"{where} is larger than any {kind}")
    return content
