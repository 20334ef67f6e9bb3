"""Run `highrank` in this process, which is quicker since all has been imported."""

import contextlib
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from highrank_plugins.cli import app


def highrank(*words: object, cwd: Path = Path()) -> Result:
    """Run a command in a folder."""
    with contextlib.chdir(cwd):
        return CliRunner().invoke(app, [str(word) for word in words], prog_name="highrank")


def refused(message: str, *words: object, cwd: Path = Path()) -> str:
    """Run a command that must be refused with a message, and return its standard error."""
    done = highrank(*words, cwd=cwd)
    assert done.exit_code == 2 and message in done.stderr, done.output
    return done.stderr
