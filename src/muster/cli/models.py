"""`muster models`: the big table of open LLMs, filtered and sorted; one model in full."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from muster.cli.options import JSON, Strict
from muster.errors import UnknownName
from muster.models.registry import find_model, list_models
from muster.roofline.model_rows import (
    Condition,
    filter_rows,
    model_row,
    parse_condition,
    sort_rows,
)


@click.command(cls=Strict)
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option(
    "--sort", metavar="COLUMN", help="params, active, layers, d_model (or L, D, F, N, K, H, V, E)."
)
@click.option("--descending", is_flag=True, help="Largest first.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEST",
    help="'params>30B', 'family=llama', 'mlp>=80%', 'tied=no'; again for more.",
)
@click.option("--family", metavar="TYPE", help="Only one model_type, e.g. llama.")
@click.option("--min-params", metavar="N", help="Only models of at least N parameters, e.g. 7B.")
@click.option("--max-params", metavar="N", help="Only models of at most N parameters.")
@click.option("--moe/--dense", default=None, help="Only mixtures of experts, or none.")
@JSON
def models(
    names: tuple[str, ...],
    sort: str | None,
    descending: bool,
    filters: tuple[str, ...],
    family: str | None,
    min_params: str | None,
    max_params: str | None,
    moe: bool | None,
    as_json: bool,
) -> None:
    """Compare open LLMs at a glance, or show the model NAME in full.

    NAME is a catalogue name, a config.json or its folder, or a Hub id; several are compared.
    """
    conditions = [*map(parse_condition, filters), *_shorthand(family, min_params, max_params)]
    chosen = tuple(find_model(name) for name in names) or list_models()
    if family and family.lower() not in {known.family.lower() for known in chosen}:
        raise UnknownName("family", family, sorted({known.family for known in chosen}))
    rows = filter_rows([model_row(architecture) for architecture in chosen], conditions)
    if moe is not None:
        rows = [row for row in rows if (row.experts is not None) == moe]
    if sort or descending:
        rows = sort_rows(rows, sort or "params", descending=descending)
    if as_json:
        click.echo(json.dumps({"muster": 1, "models": [asdict(row) for row in rows]}, indent=1))
        return
    from muster.report.models_table import print_model, print_models

    if len(names) == 1 and rows:
        print_model(chosen[0])
    else:
        print_models(rows)


def _shorthand(
    family: str | None, min_params: str | None, max_params: str | None
) -> Iterator[Condition]:
    if family:
        yield Condition(column="family", comparison="=", value=family)
    if min_params:
        yield parse_condition(f"params>={min_params}")
    if max_params:
        yield parse_condition(f"params<={max_params}")
