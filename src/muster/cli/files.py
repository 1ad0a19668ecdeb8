"""Files that commands write: whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from muster.errors import BadInput, shorten


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that could not be written, before anything long is computed for it.

    Raises:
        BadInput: the name is blank or too long, a folder, a device or a pipe bears it, or its
            folder is missing or cannot be written.
    """
    if not str(path).strip() or str(path) == ".":
        raise BadInput(f"{option} has no name of a file; write it like plan.json")
    try:
        _check(path)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{option}: cannot write {_shown(path)}: {_reason(error)}") from None


def write_whole(files: Mapping[Path, str]) -> None:
    """Write all files or none, each under another name first: nobody ever sees half of one.

    A link is followed; a new file gets the mode that any program would give it, an old one keeps
    its own.

    Raises:
        BadInput: what `check_writable` refuses, or the disk is full.
    """
    with ExitStack() as clean:
        ready = []
        for path, content in files.items():
            try:
                target = _check(path)
                unfinished = _write_beside(target, content, clean)
                mode = target.stat().st_mode & 0o777 if target.exists() else _usual_mode()
                unfinished.chmod(mode)
            except (OSError, RuntimeError, ValueError) as error:
                raise BadInput(f"cannot write {_shown(path)}: {_reason(error)}") from None
            ready.append((path, unfinished, target))
        for path, unfinished, target in ready:
            try:
                unfinished.replace(target)
            except OSError as error:
                raise BadInput(f"cannot write {_shown(path)}: {_reason(error)}") from None


def _check(path: Path) -> Path:
    """Where the file really lies."""
    target = path.resolve()
    if target.is_dir():
        raise BadInput(f"cannot write {_shown(path)}: it is a folder; name a file in it")
    if target.exists() and not target.is_file():
        raise BadInput(f"cannot write {_shown(path)}: it is a device or a pipe, not a file")
    if not target.parent.is_dir():
        raise BadInput(f"cannot write {_shown(path)}: there is no folder {_shown(path.parent)}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadInput(
            f"cannot write {_shown(path)}: the folder {_shown(path.parent)} is not writable"
        )
    return target


def _write_beside(target: Path, content: str, clean: ExitStack) -> Path:
    """The content in a file of another name, which is gone when `clean` closes."""
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=".muster-", delete=False, encoding="utf-8"
    ) as stream:
        unfinished = Path(stream.name)
        clean.callback(unfinished.unlink, missing_ok=True)
        stream.write(content)
    return unfinished


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _usual_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= 100 else shorten(text)
