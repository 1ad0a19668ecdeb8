"""How many parameters a model has: three totals, and each component as a product of the letters.

Three numbers go by the name of "the" parameter count, and they differ:

    trainable   distinct trained parameters: a tied head once, vision towers included
    stored      what a checkpoint holds: trainable, plus the buffers it saves, plus the tied head
                again where the published checkpoint is known to hold it twice
    active      what one token meets: trainable, less the routed experts that it does not visit;
                  active = trainable - routed * (1 - k / E)

FLOPs follow `active`, memory follows `trainable`, downloads follow `stored`.

Legend, in the letters of the scaling book: L layers, D d_model, F d_ff, N query heads, K KV heads,
H head_dim, V vocabulary, E experts. A size that is not its letter's number, because layers differ,
stands in a formula as a number.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from muster.models.architecture import Architecture
from muster.models.registry import published_counts
from muster.sharding.weights import Component, Weight, weight_table

GROUPS: tuple[Component, ...] = (
    "embedding",
    "attention",
    "recurrence",
    "mlp",
    "experts",
    "norm",
    "extra",
    "head",
    "tower",
)


@dataclass(frozen=True, kw_only=True)
class ParamCounts:
    """The three totals of a model, exact; see the module for what each is."""

    trainable: int
    stored: int
    active: int


@dataclass(frozen=True, kw_only=True)
class ComponentCount:
    """One row of a model's parameters.

    Attributes:
        name: of the weight, as in the weight table.
        group: one of `GROUPS`.
        formula: a product of letters and numbers that evaluates to `count` under the legend.
        count: parameters in all layers.
        share: of the model's trainable parameters, 0 to 1.
    """

    name: str
    group: Component
    formula: str
    count: int
    share: float


def param_counts(architecture: Architecture) -> ParamCounts:
    """Count a model exactly.

    >>> from muster.models.registry import find_model
    >>> param_counts(find_model("llama-3-70b")).trainable
    70553706496
    """
    return count_table(architecture, weight_table(architecture))


def count_table(architecture: Architecture, table: Iterable[Weight]) -> ParamCounts:
    """Count a model whose weight table is at hand."""
    trainable = stored = active = 0
    for weight in table:
        stored += weight.count
        if weight.trainable:
            trainable += weight.count
            active += weight.active_count
    if architecture.tied_embeddings and architecture.stores_tied_head:
        stored += head_size(architecture)
    return ParamCounts(trainable=trainable, stored=stored, active=active)


def head_size(architecture: Architecture) -> int:
    """Parameters of the output head's matrix, V * D, which tying saves."""
    return architecture.vocab_size * (architecture.embedding_dim or architecture.d_model)


def legend(architecture: Architecture) -> dict[str, int]:
    """The letters of the book with this model's numbers, those that it has.

    >>> from muster.models.registry import find_model
    >>> legend(find_model("llama-3-70b"))
    {'L': 80, 'D': 8192, 'F': 28672, 'N': 64, 'K': 8, 'H': 128, 'V': 128256}
    """
    numbers = {
        "L": architecture.num_layers,
        "D": architecture.d_model,
        "F": architecture.d_ff,
        "N": architecture.num_heads,
        "K": architecture.num_kv_heads,
        "H": architecture.head_dim,
        "V": architecture.vocab_size,
        "E": architecture.experts.num_experts if architecture.experts else None,
    }
    return {letter: number for letter, number in numbers.items() if number is not None}


def components(architecture: Architecture) -> tuple[ComponentCount, ...]:
    """Every trained weight of a model; the counts add up to `trainable`, the shares to 1.

    >>> from muster.models.registry import find_model
    >>> components(find_model("llama-3-70b"))[0]  # doctest: +ELLIPSIS
    ComponentCount(name='embedding', group='embedding', formula='V*D', count=1050673152, share=...)
    """
    table = [weight for weight in weight_table(architecture) if weight.trainable]
    total = sum(weight.count for weight in table)
    letters = legend(architecture)
    return tuple(
        ComponentCount(
            name=name,
            group=weight.component,
            formula=weight.formula(letters),
            count=weight.count,
            share=weight.count / total,
        )
        for name, weight in zip(_distinct(table), table, strict=True)
    )


def _distinct(table: Sequence[Weight]) -> list[str]:
    """Names of the weights; one that has several shapes over the layers gets a number each."""
    often = {name for name, times in Counter(weight.name for weight in table).items() if times > 1}
    seen: Counter[str] = Counter()
    names = []
    for weight in table:
        seen[weight.name] += 1
        names.append(f"{weight.name}.{seen[weight.name]}" if weight.name in often else weight.name)
    return names


def subtotals(rows: Iterable[ComponentCount]) -> Mapping[Component, int]:
    """Parameters of each group that a model has, in the order of `GROUPS`."""
    totals = dict.fromkeys(GROUPS, 0)
    for row in rows:
        totals[row.group] += row.count
    return {group: count for group, count in totals.items() if count}


def warnings_about(architecture: Architecture) -> tuple[str, ...]:
    """What a careful reader must know: remarks on the config, and published figures that differ."""
    stored = param_counts(architecture).stored
    return (
        *architecture.notes,
        *(
            f"{figure.params_total:,} is published for its checkpoint, not {stored:,}"
            + (f": {figure.note}" if figure.note else "")
            for figure in published_counts(architecture)
            if figure.params_total != stored
        ),
    )


def params_document(architecture: Architecture) -> dict[str, object]:
    """What `muster params --json` prints; see the design for its schema."""
    return {
        "muster": 1,
        "model": architecture.name,
        "components": [
            {"name": row.name, "formula": row.formula, "count": row.count, "share": row.share}
            for row in components(architecture)
        ],
        "params": asdict(param_counts(architecture)),
        "filled_in": dict(architecture.filled_in),
        "warnings": list(warnings_about(architecture)),
    }
