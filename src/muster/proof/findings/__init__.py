"""What a performance engineer would see in a compiled step, with its cost and what to change.

    finding        what a finding is, and what it is looked for in
    communication  collectives: waited for, not overlapped, of too many bytes, on too few links
    matmuls        far below the unit's rate, or padded to it
    moved          arrays laid out anew, or to the host and back
    memory         whole where they could be split, or computed again where there is room

All of them are looked for in the program's text and its timeline, so a cost is an estimate of the
same kind as the step's own (`proof.timeline`). Those that need the plan are left out without one.
"""

from collections.abc import Callable, Iterable, Iterator

from muster.proof.findings.communication import (
    exposed,
    gathered_by_reducing,
    one_ring,
    reduced_whole,
    shared_links,
    synchronous,
)
from muster.proof.findings.finding import Finding, Room, Seen, seen
from muster.proof.findings.matmuls import padded, slow
from muster.proof.findings.memory import made_whole, replicated, spare_memory
from muster.proof.findings.moved import laid_out_anew, to_the_host

__all__ = ["Finding", "Room", "Seen", "findings_of", "refused_options", "seen"]

# Below a hundredth of the step nothing is worth a line.
LEAST_SHARE = 0.01

LOOKED_FOR: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    synchronous,
    exposed,
    gathered_by_reducing,
    reduced_whole,
    one_ring,
    shared_links,
    slow,
    padded,
    laid_out_anew,
    to_the_host,
    replicated,
    made_whole,
    spare_memory,
)


def findings_of(step: Seen, *others: Finding) -> tuple[Finding, ...]:
    """All findings, the costliest first.

    Args:
        step: what they are looked for in.
        others: found elsewhere.
    """
    least = LEAST_SHARE * step.timeline.seconds
    found = [each for look in LOOKED_FOR for each in look(step)]
    kept = [each for each in found if each.of_memory or each.cost_seconds >= least]
    return tuple(sorted((*others, *kept), key=lambda each: -each.cost_seconds))


def refused_options(names: Iterable[str]) -> Iterator[Finding]:
    """Options that the compiler does not have, or not with that value; it compiled without them."""
    for name in names:
        yield Finding(
            id="unsupported-flag",
            cost_seconds=0.0,
            what=f"the compiler refuses the option {name}: compiled without it",
            change="leave it out, or give another value",
        )
