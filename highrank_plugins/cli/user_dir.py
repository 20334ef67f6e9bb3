"""`highrank user-dir`."""

from pathlib import Path

import typer

import highrank_plugins


def user_dir() -> None:
    """Print the directory to give to fairseq: fairseq-train --user-dir $(highrank user-dir) …"""
    typer.echo(Path(highrank_plugins.__file__).parent.resolve())
