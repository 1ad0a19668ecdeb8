"""Options that several commands share."""

import click

CONSTANTS = click.option(
    "--constants",
    default="documented",
    metavar="PROFILE",
    help="documented (measured and documented figures, the default) or book (the scaling book's).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the full answer as JSON.")
