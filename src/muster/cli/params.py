"""`muster params`: every component of a model with its formula, and the three totals."""

import json

import click

from muster.cli.options import JSON, Strict
from muster.models.registry import find_model


@click.command(cls=Strict)
@click.argument("model")
@JSON
def params(model: str, as_json: bool) -> None:
    """Count the parameters of MODEL (a catalogue name, a config.json or its folder, a Hub id).

    Every component has its formula in the letters of the legend, its exact count and its share;
    the totals are three: trainable, stored in the checkpoint, and active for one token.
    """
    architecture = find_model(model)
    if as_json:
        from muster.roofline.params import params_document

        click.echo(json.dumps(params_document(architecture), indent=1, allow_nan=False))
        return
    from muster.report.params_table import print_params

    print_params(architecture)
