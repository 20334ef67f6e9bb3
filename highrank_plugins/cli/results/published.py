"""`highrank results published`: the papers' scores beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def published(
    task: Annotated[str, typer.Argument(help="Name of a recipe, e.g. wmt14_en_de.")],
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Written by `highrank results record`; may be repeated."),
    ] = None,
) -> None:
    """Print the papers' scores, and ours, each kind of score in a column of its own."""
    from highrank_plugins.results.published import table
    from highrank_plugins.results.record import load_record

    with user_errors():
        ours = {str(path.parent): load_record(path)["metrics"] for path in results or []}
        typer.echo(table(task, ours))
