"""The book's rules as questions: what each asks of this plan, and the answer."""

from collections.abc import Iterator, Sequence

from muster.planner.rules import Rule

# Letters of the rules that no rule explains where it stands.
_LETTERS = (
    ("alpha", "alpha: FLOPs that a chip does while one axis of its links carries a byte"),
    ("M_X", "M_X, M_Y: torus axes that FSDP and tensor parallelism have to themselves"),
    ("B*n", "B, n: tokens of the batch, chips"),
    ("C/W", "C, W: a chip's peak FLOP/s, the links' bytes a second"),
)


def condition(rule: Rule) -> tuple[str, str]:
    """What the rule asks, and whether it is so; a rule that only computes asks nothing.

    >>> condition(Rule(id="a", statement="", value=8960, bound=1024, holds=False))
    ('8,960 <= 1,024?', 'no')
    >>> condition(Rule(id="a", statement="", value=468, bound=113, holds=True))
    ('468 >= 113?', 'yes')
    """
    value = _number(rule.value)
    if rule.bound is None or rule.holds is None:
        return value, ""
    wants_more = (rule.value >= rule.bound) is rule.holds
    return f"{value} {'>=' if wants_more else '<='} {_number(rule.bound)}?", (
        "yes" if rule.holds else "no"
    )


def legend(rules: Sequence[Rule]) -> Iterator[str]:
    """What the letters of these rules mean, where a rule does not say it."""
    texts = " ".join(rule.statement for rule in rules)
    for letter, meaning in _LETTERS:
        if letter in texts:
            yield meaning


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}".removesuffix(".0")
