"""Turn a user's mistakes into a message and exit code 2 instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from highrank_plugins.common.user_error import explained, has_no_reader


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError, FloatingPointError (messages say where) and OSError without traceback."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        if isinstance(error, BrokenPipeError) and has_no_reader():
            raise
        typer.echo(f"highrank: {explained(error)}", err=True)
        raise typer.Exit(2) from None
