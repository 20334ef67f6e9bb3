"""Print text, write it into the file of --output, and draw Markdown in a terminal."""

import shutil
import sys
from pathlib import Path

import typer


def echo_markdown(page: str, nl: bool = True) -> None:
    """Print a page of Markdown, whose tables a terminal shows drawn.

    Args:
        nl: whether a line break follows.
    """
    if sys.stdout.isatty():
        from highrank_plugins.reports.drawn_markdown import drawn_markdown

        page = drawn_markdown(page, shutil.get_terminal_size().columns)
    typer.echo(page, nl=nl)


def is_printed(output: Path | None) -> bool:
    """Whether --output names no file; `-` is standard output."""
    return output in (None, Path("-"))


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it into the file of --output, whole or not at all."""
    from highrank_plugins.common.files import write_text

    if output is None or is_printed(output):
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
