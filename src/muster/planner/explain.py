"""Why this layout: what binds it, what others lose, what would change the answer.

Every number is the step model's for a layout that can be asked for; the book's rule stands beside
it, and where the two differ the layout's own numbers say why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from muster.errors import BadInput
from muster.hardware import Cluster
from muster.models.architecture import Architecture
from muster.planner.binding import bound_of
from muster.planner.choice import AXES, EQUAL, Choice, Found, Minimize, Restrictions
from muster.planner.closed_form import Candidate
from muster.planner.constraints import shard_obstacle
from muster.planner.crossover import Crossovers, crossovers
from muster.planner.differences import TRAFFIC, changed, differences, priced, terms_text
from muster.planner.disagreement import disagreements, mixed_rule
from muster.planner.rules import Rule
from muster.planner.search import search
from muster.planner.sizes import chips_text
from muster.roofline.efficiency import Efficiency, efficiency
from muster.roofline.remat import Remat
from muster.roofline.software import default_software
from muster.roofline.workload import Workload
from muster.sharding.mesh import Layout
from muster.units import format_seconds

# Which fitted share says how much of a kind of traffic can hide.
HIDES = {
    "fsdp": "hide_weights",
    "tensor": "hide_tensor",
    "sequence": "hide_sequence",
    "data": "hide_gradients",
    "dcn": "hide_gradients",
}
BOUND_BY = {
    "compute": "compute-bound",
    "hbm": "bound by HBM",
    "ici": "bound by ICI",
    "dcn": "bound by DCN",
    "nvlink": "bound by NVLink",
    "network": "bound by the network",
    "pipeline": "bound by the pipeline",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What was asked, and what the search found."""

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    restrictions: Restrictions
    minimize: Minimize
    found: Found
    choice: Choice
    alternatives: Sequence[Choice]
    rules: Sequence[Rule]
    closed_form: Candidate | None

    @property
    def fitted(self) -> Efficiency:
        """The efficiencies that the steps were predicted with."""
        chip = self.cluster.chip
        return efficiency(chip.id, default_software(chip).name)

    def best_with(self, layout: Layout) -> Found | None:
        """The best microbatches and recomputation of a mesh; None where it is not legal."""
        fixed = {axis: getattr(layout, axis) for axis in AXES if axis != "microbatches"}
        held = Restrictions(fixed=fixed, remat=self.restrictions.remat)
        try:
            found = search(self.architecture, self.cluster, self.workload, held, within=EQUAL)
        except BadInput:
            return None
        return found if found.chosen or found.closest else None


def reasons(asked: Question) -> Iterator[str]:
    """Say it in sentences, the most important first."""
    yield _what_binds(asked)
    yield from _room(asked)
    yield from _runner_up(asked)
    yield from _replicas(asked)
    yield from _left_out(asked)
    if asked.choice.memory.fits and asked.minimize == "time":
        around = crossovers(
            asked.architecture,
            asked.cluster,
            asked.workload,
            asked.restrictions,
            asked.choice,
            examined=asked.found.examined,
        )
        yield from _batches(asked, around)
        yield from _chips(asked, around)
    yield from disagreements(
        asked.architecture, asked.cluster, asked.workload, asked.choice, asked.rules
    )
    yield from _closed_form(asked)


def _what_binds(asked: Question) -> str:
    step = asked.choice.step
    traffic = {name: getattr(step.traffic, name) for name in TRAFFIC}
    slowest = max(traffic, key=traffic.__getitem__)
    line = f"math takes {step.compute / step.total:.0%} of the step"
    if not traffic[slowest]:
        return f"{line}; one chip, no traffic"
    line += f"; the slowest traffic is {TRAFFIC[slowest]}: {format_seconds(traffic[slowest])}"
    if slowest == "host":
        return line  # the term has the waiting for hosts in it
    exposed = step.bubble if slowest == "stage" else getattr(step, slowest)
    if slowest in HIDES:
        most = getattr(asked.fitted, HIDES[slowest])
        share = f"at most {most:.0%} of it can, as fitted on measured runs"
        return f"{line}, of which {format_seconds(exposed)} does not hide ({share})"
    return f"{line}, of which {format_seconds(exposed)} does not hide"


def _room(asked: Question) -> Iterator[str]:
    """Where a hair of time was given for memory."""
    choice, first = asked.choice, next(iter(asked.found.ranked), asked.choice)
    if choice is asked.found.chosen and choice is not first:
        memory = first.memory
        yield (
            f"{first.layout}{changed(choice, first)} would be "
            f"{_share(_value(asked, choice) / _value(asked, first) - 1)} "
            f"{'cheaper' if asked.minimize == 'cost' else 'quicker'} but fill "
            f"{memory.total / memory.usable:.0%} of a chip's memory: of those within "
            f"{EQUAL - 1:.0%} of it, one that fills "
            f"{choice.memory.total / choice.memory.usable:.0%} is taken"
        )


def _value(asked: Question, choice: Choice) -> float:
    chips = choice.layout.chips_used
    return choice.seconds * (chips if asked.minimize == "cost" else 1)


def _runner_up(asked: Question) -> Iterator[str]:
    choice = asked.choice
    others = [each for each in asked.alternatives if _value(asked, each) >= _value(asked, choice)]
    if not others:
        return
    other = others[0]
    name = f"the runner-up, {other.layout}{changed(choice, other)},"
    more = _value(asked, other) / _value(asked, choice) - 1
    slower = other.seconds - choice.seconds
    chips, its = choice.layout.chips_used, other.layout.chips_used
    terms = terms_text(differences(choice.step, other.step), slower)
    if asked.minimize == "time":
        yield f"{name} takes {format_seconds(slower)} more ({_share(more)}): {terms}"
        return
    sign = "more" if slower >= 0 else "less"
    pace = f"{format_seconds(abs(slower))} {sign} a step ({terms})" if slower else "the same step"
    if asked.minimize == "cost":
        where = f" on {chips_text(its)}, not {chips:,}" if its != chips else ""
        cost = priced(asked.workload, choice, other)
        yield f"{name} costs {_share(more)} more, {cost}: {pace}{where}"
    elif its > chips:
        yield f"{name} takes {its:,} chips, not {chips:,}: {pace}"
    else:
        yield f"{name} takes as many chips and {pace}"


def _share(more: float) -> str:
    return f"{more:.1%}" if more >= 0.0005 else "under 0.1%"


def _replicas(asked: Question) -> Iterator[str]:
    """Why batch ways replicate although sharding them would take less memory."""
    layout = asked.choice.layout
    if layout.data == 1 or not default_software(asked.cluster.chip).shards_replicas:
        return
    if {"data", "fsdp"} & asked.restrictions.fixed.keys():
        return
    sharded = replace(layout, data=1, fsdp=layout.fsdp * layout.data)
    thin = shard_obstacle(asked.architecture, asked.cluster.chip, sharded.weight_shards)
    if thin:
        yield f"data {layout.data} rather than more fsdp: {thin.message}"
        return
    found = asked.best_with(sharded)
    other = found.chosen if found else None
    if other and other.seconds > asked.choice.seconds:
        slower = other.seconds - asked.choice.seconds
        terms = terms_text(differences(asked.choice.step, other.step), slower)
        yield (
            f"data {layout.data} rather than fsdp {sharded.fsdp}, which takes "
            f"{format_seconds(slower)} more: {terms}"
        )


def _left_out(asked: Question) -> Iterator[str]:
    if (
        asked.cluster.chip.kind == "gpu"
        and asked.restrictions.remat is None
        and asked.choice.remat is not Remat.NONE
    ):
        yield (
            "activations on the host (--remat offload) are left out on GPUs unless asked for: no "
            "measured run shows what they cost there"
        )


def _batches(asked: Question, around: Crossovers) -> Iterator[str]:
    """From which batch on it is compute-bound, by search, with the book's beside it."""
    if not around.batches:
        return
    computes = bound_of(asked.choice.cluster, asked.choice) == "compute"
    least, last = asked.workload.batch_tokens, around.batches[-1]
    where, by = f"{last.workload.batch_tokens:,} tokens", BOUND_BY[last.bound]
    crossed = (last.bound == "compute") is not computes
    if computes and crossed:
        if len(around.batches) > 1:
            least = around.batches[-2].workload.batch_tokens
        line = f"stay compute-bound down to {least:,} tokens a batch and are {by} at {where}"
    elif computes:
        line = f"are still compute-bound at {where} a batch"
    elif crossed:
        line = f"would become compute-bound only from about {where} a batch"
    else:
        line = f"would still be {by} at {where} a batch"
    rule = mixed_rule(asked.rules)
    book = ""
    if rule and rule.bound is not None:
        book = f"; from {rule.bound * asked.cluster.chips:,.0f} by the book's rule"
    chips = asked.cluster.chips
    if chips == 1:
        one = line.replace("stay ", "stays ", 1).replace("are ", "is ")
        yield f"this chip {one}{book}"
    else:
        yield f"these {chips_text(chips)} {line}{book}"


def _chips(asked: Question, around: Crossovers) -> Iterator[str]:
    """How this batch scales on more chips, by search, with the book's beside it."""
    if not around.chips:
        return
    times = [asked.choice.seconds, *(point.choice.seconds for point in around.chips)]
    gains = [f"{before / after:.2f}" for before, after in pairwise(times)]
    last = around.chips[-1]
    name = f"{last.choice.cluster.name} ({chips_text(last.choice.layout.chips_used)})"
    rule = mixed_rule(asked.rules)
    book = ""
    if rule and rule.bound is not None:
        most = asked.workload.batch_tokens / rule.bound
        book = f"; the book's rule has it compute-bound up to {most:,.0f} chips"
    if len(gains) == 1:
        line = f"on {name} a step of this batch would be {gains[0]} times as fast"
    else:
        line = (
            f"doubling the chips makes a step of this batch {', then '.join(gains)} times as fast, "
            f"up to {name}"
        )
    yield f"{line}, {BOUND_BY[last.bound]}{book}"


def _closed_form(asked: Question) -> Iterator[str]:
    if asked.closed_form is None:
        return
    layout, book = asked.choice.layout, asked.closed_form.layout
    mine = (layout.data * layout.weight_shards, layout.tensor, layout.stage)
    its = (book.data * book.weight_shards, book.tensor, book.stage)
    if mine == its and layout.chips_used == book.chips_used:
        but = f", but for data {layout.data}" if layout.data > 1 else ""
        yield f"the closed form, rounded to what divides, agrees: {book}{but}"
        return
    line = f"the closed form, at full rate and with all traffic hidden, would take {book}"
    found = asked.best_with(book)
    other = found.chosen if found else None
    thin = shard_obstacle(asked.architecture, asked.cluster.chip, book.weight_shards)
    if found is None:
        yield f"{line}, and no slice has just so many chips"
    elif other is None:
        yield f"{line}, which does not fit"
    elif other.seconds <= asked.choice.seconds and thin:
        yield f"{line}; it is left out: {thin.message}"
    elif other.seconds <= asked.choice.seconds:
        chips = chips_text(other.layout.chips_used)
        yield f"{line}: {format_seconds(other.seconds)} a step on {chips}"
    else:
        slower = other.seconds - asked.choice.seconds
        terms = terms_text(differences(asked.choice.step, other.step), slower)
        yield f"{line}; the step model predicts {format_seconds(slower)} more for it: {terms}"
