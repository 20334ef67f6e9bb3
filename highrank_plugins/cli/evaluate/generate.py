"""`highrank evaluate generate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def generate(
    command: Annotated[
        list[str], typer.Argument(help="After --: fairseq-generate and its options.")
    ],
    processes: Annotated[int, typer.Option(min=1, help="On GPUs in turn, else on CPU cores.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="File for what is printed otherwise, whole or not at all.")
    ] = None,
) -> None:
    """Translate on several processes: the lines of fairseq-generate, sorted by sentence."""
    from highrank_plugins.common.files import write_text
    from highrank_plugins.training import generation

    with user_errors():
        lines = generation.generate(command, processes)
        if output is None:
            sys.stdout.buffer.writelines(lines)
        else:
            write_text(output, b"".join(lines).decode("utf-8"))
