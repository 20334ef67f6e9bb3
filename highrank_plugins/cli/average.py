"""`highrank average`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def average(
    directory: Annotated[Path, typer.Argument(help="--save-dir of a training.")],
    output: Annotated[Path, typer.Option(help="The checkpoint to write.")],
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints.")] = 5,
) -> None:
    """Average the weights of the last checkpoints of a training."""
    from highrank_plugins.experiments.averaging import average_checkpoints, last_checkpoints

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        paths = last_checkpoints(directory, last)
        typer.echo(f"averaging {', '.join(path.name for path in paths)} of {directory}")
        average_checkpoints(paths, output)
