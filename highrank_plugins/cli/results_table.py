"""`highrank results-table` and `highrank seeds-table`."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def results_table(
    records: Annotated[list[Path], typer.Argument(help="results.json files of runs.")],
) -> None:
    """Print records of runs as a Markdown table."""
    from highrank_plugins.results import results_table as table

    with user_errors():
        typer.echo(table.results_table(records), nl=False)


def seeds_table(
    records: Annotated[list[Path], typer.Argument(help="Records named SYSTEM-SEED.json.")],
    metric: Annotated[str, typer.Option(help="Tested against the system named softmax.")],
) -> None:
    """Print mean ± deviation over seeds, and t-tests against the softmax, as a Markdown table."""
    from highrank_plugins.results import seeds_table as table

    with user_errors():
        typer.echo(table.seeds_table(records, metric), nl=False)
