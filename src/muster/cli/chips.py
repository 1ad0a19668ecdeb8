"""`muster chips`: the hardware table, and every figure of one chip with its sources."""

import json

import click

from muster.cli.options import CONSTANTS, JSON, Strict
from muster.hardware import all_chips, chip_by_name


@click.command(cls=Strict)
@click.argument("name", required=False)
@CONSTANTS
@JSON
def chips(name: str | None, constants: str, as_json: bool) -> None:
    """Show every chip that muster knows, or all that it knows of the chip NAME."""
    chosen = (
        all_chips(constants)
        if name is None
        else (chip_by_name(name, constants, allow_incomplete=True),)
    )
    if as_json:
        from muster.hardware.describe import chip_to_json

        document = {"muster": 1, "chips": [chip_to_json(chip) for chip in chosen]}
        click.echo(json.dumps(document, indent=1, allow_nan=False))
        return
    from muster.report.chips_table import print_chip, print_chips

    if name is None:
        print_chips(chosen)
    else:
        print_chip(chosen[0])
