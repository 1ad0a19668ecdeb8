"""Options that several commands share, and how all commands read theirs."""

import re
from fractions import Fraction

import click

from muster.errors import BadInput, UnknownName, shorten
from muster.units import BatchSize, parse_batch, parse_count

_PART_OF_A_PREFIX = re.compile(
    r"(?P<number>\d{1,9}\.\d{1,9})\s*(?P<prefix>[kmg])i?", re.IGNORECASE | re.ASCII
)
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30}


class Strict(click.Command):
    """A command that refuses an option given twice, rather than silently take the last."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse once to see what stands there twice, then as every command does."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        seen: set[str] = set()
        for given in order:
            if not isinstance(given, click.Option) or given.multiple or given.name is None:
                continue
            if given.name in seen and not given.is_flag:
                raise click.UsageError(f"{given.opts[0]} is given twice; give it once", ctx)
            seen.add(given.name)
        return super().parse_args(ctx, args)


def one_of[T: str](text: str, kind: str, known: tuple[T, ...]) -> T:
    """The member of a closed set that a text names, in any case.

    Raises:
        UnknownName: none has that name.

    >>> one_of("Chips", "sweep", ("batch", "chips"))
    'chips'
    """
    for each in known:
        if text.strip().lower() == each:
            return each
    raise UnknownName(kind, text, known)


def read_batch(text: str) -> BatchSize:
    """Read a global batch, also one as the tool itself prints it: 7.27M, no whole number.

    Whole tokens are taken of it, and later whole sequences, which the plan then says.

    >>> read_batch("4M"), read_batch("7.27M")
    (BatchSize(tokens=4194304, sequences=None), BatchSize(tokens=7623147, sequences=None))
    """
    try:
        return parse_batch(text)
    except BadInput:
        match = _PART_OF_A_PREFIX.fullmatch(text.strip())
        tokens = int(Fraction(match["number"]) * _BINARY[match["prefix"].lower()]) if match else 0
        if not tokens:
            raise
        return BatchSize(tokens=tokens)


def step_number(text: str | None) -> int | None:
    """Read which step of a run is meant; imported weights are of step 0.

    >>> step_number("0"), step_number(None)
    (0, None)
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,12}", text, re.ASCII):
        raise BadInput(f"--step {shorten(text)} is not the number of a step")
    return int(text)


CONSTANTS = click.option(
    "--constants",
    default="documented",
    metavar="PROFILE",
    help="documented (measured and documented figures, the default) or book (the scaling book's).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the full answer as JSON.")


def fixed_ways(pairs: tuple[str, ...]) -> dict[str, int]:
    """Read `--fix AXIS=N`, given as often as one likes.

    Raises:
        BadInput: no number of ways, or an axis twice.
    """
    fixed: dict[str, int] = {}
    for pair in pairs:
        name, equals, ways = pair.partition("=")
        axis = name.strip().lower()
        if not equals:
            raise BadInput(f"--fix {pair!r} names no number of ways; write it like tensor=4")
        if axis in fixed:
            raise BadInput(f"--fix {axis} is given twice; give it once")
        fixed[axis] = parse_count(ways, f"--fix {axis}")
    return fixed
