"""`highrank results table` and `highrank results seeds`."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def results_table(
    records: Annotated[
        list[Path], typer.Argument(help="Records of runs, as exp/ptb/*/results.json.")
    ],
) -> None:
    """Print records of runs as a Markdown table."""
    from highrank_plugins.results import results_table as table

    with user_errors():
        typer.echo(table.results_table(records), nl=False)


def seeds_table(
    records: Annotated[
        list[Path],
        typer.Argument(help="SYSTEM-SEED.json, SYSTEM-SEED/results.json or SYSTEM/results.json."),
    ],
    metric: Annotated[str, typer.Option(help="Tested against the baseline.")],
    baseline: Annotated[
        str | None, typer.Option(help="The system to test against (default: softmax).")
    ] = None,
) -> None:
    """Print mean ± deviation over seeds, and t-tests against a baseline, as a Markdown table."""
    from highrank_plugins.results.seeds_table import seeds_table as table
    from highrank_plugins.results.seeds_table import system_of

    with user_errors():
        systems = dict.fromkeys(system_of(path, records) for path in records)
        if baseline is not None and baseline not in systems:
            raise ValueError(f"--baseline {baseline}: the systems are {', '.join(systems)}")
        typer.echo(table(records, metric, baseline or "softmax"), nl=False)
    if baseline is None and "softmax" not in systems:
        typer.echo(
            f"highrank: no baseline, so no p: no system is named softmax; give --baseline with one "
            f"of {', '.join(systems)}",
            err=True,
        )
