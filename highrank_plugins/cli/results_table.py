"""`highrank results-table`."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def results_table(
    records: Annotated[list[Path], typer.Argument(help="results.json files of runs.")],
) -> None:
    """Print records of runs as a Markdown table."""
    from highrank_plugins.experiments import results_table as table

    with user_errors():
        typer.echo(table.results_table(records), nl=False)
