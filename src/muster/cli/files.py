"""Files that commands write: whole or not at all."""

import os
import tempfile
from pathlib import Path

from muster.errors import BadInput, shorten


def write_whole(path: Path, content: str) -> None:
    """Write a file under another name first, so that nobody ever sees half of it.

    A link is followed; a new file gets the mode that any program would give it, an old one keeps
    its own.

    Raises:
        BadInput: a folder, a device or a pipe bears the name, the folder is missing or cannot be
            written, the disk is full.
    """
    unfinished: Path | None = None
    try:
        target = path.resolve()
        if target.is_dir():
            raise BadInput(f"cannot write {_shown(path)}: it is a folder; name a file in it")
        if target.exists() and not target.is_file():
            raise BadInput(f"cannot write {_shown(path)}: it is a device or a pipe, not a file")
        if not target.parent.is_dir():
            raise BadInput(f"cannot write {_shown(path)}: there is no folder {_shown(path.parent)}")
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=".muster-", delete=False, encoding="utf-8"
        ) as stream:
            unfinished = Path(stream.name)
            stream.write(content)
        unfinished.chmod(target.stat().st_mode & 0o777 if target.exists() else _usual_mode())
        unfinished.replace(target)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot write {_shown(path)}: {reason}") from None
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= 100 else shorten(text)
