"""What a command says beside its answer, on standard error."""

from collections.abc import Sequence

import click


def say_damaged(damaged: Sequence[str], used: object) -> None:
    """Name the checkpoints that could not be used, and the step that was used instead.

    Args:
        damaged: a line for each.
        used: the step.
    """
    for line in damaged:
        click.echo(f"muster: {line}", err=True)
    if damaged:
        click.echo(f"muster: used step {used} instead", err=True)
