"""Files that commands write: whole or not at all."""

import tempfile
from pathlib import Path

from muster.errors import BadInput


def write_whole(path: Path, content: str) -> None:
    """Write a file under another name first, so that nobody ever sees half of it.

    Raises:
        BadInput: the folder is missing or cannot be written, the disk is full.
    """
    unfinished: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as stream:
            unfinished = Path(stream.name)
            stream.write(content)
        unfinished.replace(path)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)
