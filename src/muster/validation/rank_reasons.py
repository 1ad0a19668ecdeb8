"""Why a published layout is far from the search's best: stated rules, looked at in order.

A rule that can say how much of the gain it explains is given only where that is half of it or more.
"""

from collections.abc import Iterator

from muster.planner.constraints import shard_obstacle
from muster.planner.search import Choice
from muster.roofline.remat import Remat
from muster.validation.predict import software_of
from muster.validation.ranks import Rank
from muster.validation.setup import Setup

MODEL_AXES = ("stage", "sequence", "expert", "tensor")  # those that a software must be written for
INTERLEAVED = "interleaved stages"
WORDS = {
    "stage": "stages",
    "sequence": "sequence ways",
    "expert": "expert ways",
    "tensor": "tensor ways",
}
MOST = 0.5  # share of the gain that a reason explains
NOT_EXPLAINED = "not explained"
GB = 1e9


def rank_reasons(rank: Rank, used: set[str], family: int) -> Iterator[str]:
    """Stated rules, the most telling first."""
    setup, best, tuned, memory = rank.setup, rank.best, rank.tuned, rank.memory
    short = f"{memory.total / GB:.0f} of {memory.usable / GB:.0f} GB"
    if best is None:
        yield f"nothing is predicted to fit; published takes {short}"
        return
    gain = rank.gain or 0.0
    if gain > 0 and rank.measured_best >= MOST * gain:
        less = 1 - 1 / (1 + rank.measured_best)
        yield f"one of {family} layouts measured; the fastest took {less:.0%} less"
    if gain < 0 and not memory.fits:
        yield f"predicted not to fit: {short}"
    if software_of(setup).name == "deepspeed":
        yield "ZeRO-3 alone, which its source measured to compare it with pipelines"
    if tuned is None:
        yield from _of_rules(setup)
    elif gain > 0 and (rank.mesh_gain or 0) < gain / 2:
        yield _of_schedule(setup, tuned)
    elif gain < 0 and not _is_policy(setup):
        yield f"remat {_remat_words(setup)!r} is none of the search's"
    yield from _of_software(rank, best, used)
    yield from _of_terms(rank, best)


def _of_rules(setup: Setup) -> Iterator[str]:
    """Why the search has no such mesh."""
    layout = setup.layout
    obstacle = shard_obstacle(setup.architecture, setup.cluster.chip, layout.weight_shards)
    if obstacle:
        yield f"not searched: {obstacle.message}"
    elif layout.stage > 1 and layout.fsdp > 1:
        yield "not searched: weights sharded within a pipeline"
    elif layout.shards_over_slices:
        yield "not searched: weights sharded between slices"
    else:
        yield "the search finds no schedule that fits on its mesh"


def _of_software(rank: Rank, best: Choice, used: set[str]) -> Iterator[str]:
    """What the best does that no run of the source did: perhaps what its software cannot."""
    gain, familiar = rank.gain or 0.0, rank.familiar_gain
    new = [axis for axis in MODEL_AXES if getattr(best.layout, axis) > 1 and axis not in used]
    if new and gain > 0 and familiar is not None and gain - familiar >= MOST * gain:
        words = " or ".join(WORDS[axis] for axis in new)
        yield f"no run of its source uses {words} ({familiar:+.0%} without)"
    pieces = best.layout.virtual_stages
    if "stage" in new or pieces == 1 or INTERLEAVED in used or gain <= 0:
        return
    # Without them the bubble would be so many times as long.
    lost = (pieces - 1) * best.step.bubble
    if lost >= MOST * (rank.published.total - best.seconds):
        yield f"no run of its source uses {INTERLEAVED} ({lost:.3g} s of bubble without)"


def _of_schedule(setup: Setup, tuned: Choice) -> str:
    """What the search changes on the same mesh."""
    layout, ran = tuned.layout, setup.layout
    changes = []
    if layout.microbatches != ran.microbatches:
        changes.append(f"{layout.microbatches} microbatches for {ran.microbatches}")
    if layout.virtual_stages != ran.virtual_stages:
        changes.append(f"{layout.virtual_stages} pieces a stage for {ran.virtual_stages}")
    if _remat_words(setup) != tuned.remat.value:
        changes.append(f"remat {tuned.remat.value} for {_remat_words(setup)}")
    return f"its mesh does better with {', '.join(changes)}"


def _remat_words(setup: Setup) -> str:
    return setup.remat.raw.split("(")[0].strip().split(" ")[0] or "none"


def _is_policy(setup: Setup) -> bool:
    """Whether the search has the run's recomputation, or as much."""
    return setup.remat.exact and _remat_words(setup).lower() in {each.value for each in Remat}


def _of_terms(rank: Rank, best: Choice) -> Iterator[str]:
    """The term that the best saves most of, where that is most of what it saves."""
    ours, theirs = rank.published.terms, best.step.terms
    difference = rank.published.total - best.seconds
    term = max(ours, key=lambda name: (ours[name] - theirs[name]) * (1 if difference > 0 else -1))
    share = (ours[term] - theirs[term]) / difference if difference else 0.0
    if share < MOST:
        yield f"{NOT_EXPLAINED} by one term: {term} is {share:.0%} of it"
        return
    published = _remat_words(rank.setup)
    why = ""
    if term == "compute" and published != best.remat.value:
        why = f" (remat {published}, best {best.remat.value})"
    yield f"most of it is {term}: {ours[term]:.3g} s, best {theirs[term]:.3g} s{why}"
