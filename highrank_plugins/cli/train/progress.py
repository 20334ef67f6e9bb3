"""`highrank train progress`."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def progress(
    file: Annotated[Path, typer.Argument(help="Written by `highrank train configure`.")],
    block: Annotated[str, typer.Option(help="The block that is trained.")] = "train",
) -> None:
    """Turn the JSON log of fairseq-train (standard input) into short lines with the time left."""
    from highrank_plugins.training.configuration import load
    from highrank_plugins.training.training_log import digest

    with user_errors():
        train = load(file).options(block)
    bounds = (float(train.get(name, 0)) or math.inf for name in ("max_update", "max_epoch"))
    for line in digest(sys.stdin, *bounds):
        typer.echo(line)
