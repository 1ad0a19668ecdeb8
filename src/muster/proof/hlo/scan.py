"""Where brackets and strings of HLO text end, and what stands between their commas."""

import re

# A string that nothing closes goes on to the end: else each quote in it would be tried as a start.
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[(){}\[\],]', re.DOTALL)
_MARKS_OF_A_LINE = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]|"', re.DOTALL)
_REST_OF_STRING = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_OPENING, _CLOSING = "({[", ")}]"


def depth_after(line: str, open_: int, *, in_string: bool) -> tuple[int, bool]:
    """Brackets open at a line's end, those in strings not counted, and whether a string is.

    Args:
        line: one line of several.
        open_: brackets open before it.
        in_string: whether it begins within a string.

    >>> depth_after('f(a, {b="}', 0, in_string=False)
    (2, True)
    >>> depth_after('}", c})', 2, in_string=True)
    (0, False)
    """
    if in_string:
        match = _REST_OF_STRING.match(line)
        if match is None:
            return open_, True
        line = line[match.end() :]
    for mark in _MARKS_OF_A_LINE.finditer(line):
        sign = mark.group()
        if sign == '"':  # the rest of the line is in a string that goes on
            return open_, True
        open_ += (sign in _OPENING) - (sign in _CLOSING)
    return open_, False


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
    """The text without `/*index=5*/`; what nothing closes is no comment.

    >>> without_comments("a, /*index=1*/b, /*c")
    'a, b, /*c'
    """
    before, *begun = text.split("/*")
    for part in begun:
        _, closed, after = part.partition("*/")
        before += after if closed else f"/*{part}"
    return before
