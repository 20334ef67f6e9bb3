"""Turn a user's mistakes into a message and exit code 2 instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError, FloatingPointError (messages say where) and OSError without traceback."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        typer.echo(f"highrank: {_message(error)}", err=True)
        raise typer.Exit(2) from None


def _message(error: ValueError | OSError | FloatingPointError) -> str:
    """Return `file: no such file or directory`, not Python's `[Errno 2] No such … : 'file'`."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)
