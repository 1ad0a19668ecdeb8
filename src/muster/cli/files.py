"""Files that commands write: whole or not at all."""

import os
import tempfile
from collections.abc import Iterable, Mapping
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
    if str(path) == "-":
        raise BadInput(f"{option} writes a file, not to standard output: give it a name")
    try:
        _check(path)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"{option}: cannot write {_shown(path)}: {_reason(error)}") from None


def check_outputs(
    files: Mapping[str, Path | None], inputs: Iterable[tuple[str, Path]] = ()
) -> None:
    """Refuse what cannot or must not be written, before anything is computed.

    Args:
        files: to be written, by option; None where it is not given.
        inputs: what is read, each as a message calls it, and where it is.

    Raises:
        BadInput: as `check_writable`; a file is one of the inputs, or two options name the same.
    """
    given = [(option, file) for option, file in files.items() if file is not None]
    held = list(inputs)
    for place, (option, file) in enumerate(given):
        check_writable(file, option)
        for what, read in held:
            if os.path.exists(read) and _same(file, read):  # noqa: PTH110 (a name too long is none)
                raise BadInput(f"{option}: {_shown(file)} is {what}; name another file to write")
        for other, earlier in given[:place]:
            if _same(file, earlier):
                raise BadInput(f"{other} and {option} name the same file; give each its own")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except (OSError, RuntimeError, ValueError):  # one of the two is not there
        return False


def write_whole(files: Mapping[Path, str | bytes]) -> None:
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


def write_option(option: str, path: Path, content: str | bytes) -> None:
    """Write the whole file that an option names, or say which option's file could not be.

    Raises:
        BadInput: as `write_whole`.
    """
    try:
        write_whole({path: content})
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None


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


def _write_beside(target: Path, content: str | bytes, clean: ExitStack) -> Path:
    """The content in a file of another name, which is gone when `clean` closes."""
    with tempfile.NamedTemporaryFile(
        "wb", dir=target.parent, prefix=".muster-", delete=False
    ) as stream:
        unfinished = Path(stream.name)
        clean.callback(unfinished.unlink, missing_ok=True)
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)
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
