"""The one exception tree of muster.

    MusterError                 anything that muster itself raises
    ├── BadInput                the user's input cannot be used        exit status 2
    │   └── UnknownName         a name that is not in a closed set     exit status 2
    └── AnswerIsNo              the question was good, the answer no   exit status 1

Messages are one line, say what is wrong, and name the nearest right thing.
"""

import difflib
from collections.abc import Iterable


class MusterError(Exception):
    """Base of everything that muster raises on purpose."""

    exit_status = 1


class BadInput(MusterError):
    """The input cannot be used; the message is one line and names the nearest right thing."""

    exit_status = 2


class AnswerIsNo(MusterError):
    """The question makes sense and its answer is no (does not fit, does not pass)."""

    exit_status = 1


class UnknownName(BadInput):
    """A name that is not among the known ones.

    >>> str(UnknownName("chip", "v5q", ["v5p", "v5e", "h100"]))
    "unknown chip 'v5q'; did you mean v5p or v5e?"
    >>> str(UnknownName("chip", "abacus", ["v5p", "v5e"]))
    "unknown chip 'abacus'; choose from v5p, v5e"
    """

    def __init__(
        self, kind: str, name: str, choices: Iterable[str], *, note: str | None = None
    ) -> None:
        """Describe the unknown `name` of a `kind`, beside the nearest of `choices`.

        A `note` of what to do instead stands in the place of the list of choices.
        """
        known = list(choices)
        wanted = name[:MOST_CHARACTERS_SHOWN].lower()
        near = [choice for choice in known if wanted and choice.lower().startswith(wanted)]
        near += difflib.get_close_matches(wanted, known, n=MOST_NEAR, cutoff=0.6)
        near = list(dict.fromkeys(near))[:MOST_NEAR]
        if near:
            hint = f"did you mean {join_or(near)}?"
        elif note is not None:
            hint = ""
        elif len(known) <= MOST_CHOICES_LISTED:
            hint = f"choose from {', '.join(known)}"
        else:
            hint = (
                f"choose from {', '.join(known[:MOST_CHOICES_LISTED])}, ... ({len(known)} in all)"
            )
        advice = f"{hint} {note[:1].upper()}{note[1:]}" if hint and note else hint or note or ""
        super().__init__(f"unknown {kind} {shorten(name)}; {advice}")
        self.choices = known


MOST_CHOICES_LISTED = 24
MOST_NEAR = 3
MOST_CHARACTERS_SHOWN = 60


def join_or(words: Iterable[str]) -> str:
    """Join words as prose does.

    >>> join_or(["a"]), join_or(["a", "b"]), join_or(["a", "b", "c"])
    ('a', 'a or b', 'a, b or c')
    """
    *head, last = words
    return f"{', '.join(head)} or {last}" if head else last


def shorten(value: object) -> str:
    """Show a value on one short line, whatever it is.

    >>> shorten("x" * 100) == "'" + "x" * 56 + "..."
    True
    """
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS_SHOWN else text[: MOST_CHARACTERS_SHOWN - 3] + "..."
