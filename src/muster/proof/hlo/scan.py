"""Where brackets and strings of HLO text end, and what stands between their commas."""

import re

_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]', re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/")
_OPENING, _CLOSING = "({[", ")}]"


def depth(text: str) -> int:
    """Brackets that are opened and not closed; those inside strings do not count.

    >>> depth('f(a, {b="}"'), depth("f(a)")
    (2, 0)
    """
    open_ = 0
    for mark in _MARKS.finditer(text):
        sign = mark.group()
        open_ += (sign in _OPENING) - (sign in _CLOSING)
    return open_ + (1 if _open_string(text) else 0)


def _open_string(text: str) -> bool:
    return '"' in _MARKS.sub(" ", text)


def closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`.

    Raises:
        ValueError: nothing closes it.
    """
    open_ = 0
    for mark in _MARKS.finditer(text, start):
        sign = mark.group()
        open_ += (sign in _OPENING) - (sign in _CLOSING)
        if open_ == 0 and sign in _CLOSING:
            return mark.start()
    raise ValueError(f"nothing closes {text[start : start + 60]!r}")


def split(text: str) -> list[str]:
    """The parts of a list between commas that no bracket or string encloses.

    >>> split('a, b={1,2}, c="x,y"')
    ['a', 'b={1,2}', 'c="x,y"']
    """
    parts, open_, begun = [], 0, 0
    for mark in _MARKS.finditer(text):
        sign = mark.group()
        if sign == "," and open_ == 0:
            parts.append(text[begun : mark.start()])
            begun = mark.end()
        else:
            open_ += (sign in _OPENING) - (sign in _CLOSING)
    parts.append(text[begun:])
    stripped = (part.strip() for part in parts)
    return [part for part in stripped if part]


def without_comments(text: str) -> str:
    """The text without `/*index=5*/`."""
    return _COMMENT.sub("", text) if "/*" in text else text
