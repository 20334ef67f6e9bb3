"""Errors of the user's making: a message and exit code 2 instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError (wrong input, its message says where) and OSError without traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"highrank: {error}", err=True)
        raise typer.Exit(2) from None
