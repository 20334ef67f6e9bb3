"""Print text and tables, draw them in a terminal, and write them into the file of --output."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from highrank_plugins.reports.tables import Table


def echo_markdown(page: str, nl: bool = True) -> None:
    """Print a page of Markdown, which a terminal shows drawn.

    Args:
        nl: whether a line break follows.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(page))
    else:
        typer.echo(page, nl=nl)


def is_printed(output: Path | None) -> bool:
    """Whether --output names no file; `-` is standard output."""
    return output in (None, Path("-"))


def print_tables(
    tables: "Sequence[Table]", output: Path | None = None, format: str | None = None
) -> None:
    """Print tables, or write them: drawn by default on a terminal, else as Markdown."""
    from highrank_plugins.reports.tables import FORMATS

    on_terminal = is_printed(output) and sys.stdout.isatty()
    print_or_write(FORMATS[format or ("terminal" if on_terminal else "markdown")](tables), output)


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it into the file of --output, whole or not at all."""
    from highrank_plugins.common.files import write_text

    if output is None or is_printed(output):
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
