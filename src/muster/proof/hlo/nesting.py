"""Computations that call others: how deep, and how much one step comes to when all are followed.

Readers follow calls by recursion, and a computation as often as it is called: forty, each called
twice by the one above, would be met 2**40 times. Compiled programs are nearly trees, a few calls
deep, so what is no such thing is refused before anything follows it.
"""

from collections.abc import Iterator, Mapping

from muster.errors import BadInput
from muster.proof.hlo.program import Computation, Op

DEEPEST = 100
# Operations that are met for each that is written: compiled programs have 2 to 6, a loop of layers
# within one of microbatches three times that. And what small programs may have besides.
MOST_FOR_ONE, MOST_OF_SMALL = 30, 100_000
_SHOWN = 3  # a timeline shows so many runs of a loop


def check_nesting(computations: Mapping[str, Computation], entry: str) -> None:
    """See that the calls of a program can be followed.

    Raises:
        BadInput: computations call themselves, or are nested too deep, or call too much too often.
    """
    written = sum(len(each.ops) for each in computations.values())
    most = MOST_OF_SMALL + MOST_FOR_ONE * written
    depth, met = _measured(computations, entry)
    if depth > DEEPEST:
        raise BadInput(
            f"its computations are nested {depth:,} deep; programs of up to {DEEPEST} can be read"
        )
    if met > most:
        raise BadInput(
            f"its computations of {written:,} operations call each other so often that following "
            f"the calls meets more than {most:,}"
        )


def _measured(computations: Mapping[str, Computation], entry: str) -> tuple[int, int]:
    """How deep the entry's calls are nested, and how many operations are met in following them."""
    done: dict[str, tuple[int, int]] = {}
    at: dict[str, Iterator[str]] = {entry: _called(computations, entry)}  # the way down to here
    while at:
        name = next(reversed(at))
        inner = next((each for each in at[name] if each not in done), None)
        if inner is None:
            del at[name]
            done[name] = _with_called(computations, name, done)
        elif inner in at:
            raise BadInput("its computations call themselves")
        else:
            at[inner] = _called(computations, inner)
    return done[entry]


def _called(computations: Mapping[str, Computation], name: str) -> Iterator[str]:
    called = (each for op in computations[name].ops for each in op.called)
    return (each for each in called if each in computations)


def _with_called(
    computations: Mapping[str, Computation], name: str, done: Mapping[str, tuple[int, int]]
) -> tuple[int, int]:
    ops = computations[name].ops
    calls = [(op, each) for op in ops for each in op.called if each in done]
    depth = 1 + max((done[each][0] for _, each in calls), default=0)
    met = len(ops) + sum(_runs(op) * done[each][1] for op, each in calls)
    return depth, met


def _runs(op: Op) -> int:
    return _SHOWN if op.opcode == "while" else 1
