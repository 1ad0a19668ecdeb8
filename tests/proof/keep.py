"""Keep a compiled program's text for tests to read."""

import gzip
import re
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_PLACE = re.compile(r'"/[^"\n]*/(?:site-packages/|(?=(?:src/muster|tests)/))')


def keep(name: str, text: str) -> None:
    """Write `programs/NAME.hlo.txt.gz`, in which source files are called as they are anywhere."""
    kept = without_places(text)
    (PROGRAMS / f"{name}.hlo.txt.gz").write_bytes(gzip.compress(kept.encode(), mtime=0))


def without_places(text: str) -> str:
    """Leave out where on a machine source files lay.

    >>> without_places('1 "/home/me/muster/src/muster/errors.py"')
    '1 "src/muster/errors.py"'
    >>> without_places('source_file="/opt/lib/python3.12/site-packages/optax/_src/base.py"')
    'source_file="optax/_src/base.py"'
    """
    return _PLACE.sub('"', text)
