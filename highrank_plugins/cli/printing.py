"""Print Markdown: as it is into files and pipes, drawn in a terminal."""

import shutil
import sys

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
