"""`highrank archs`."""

import logging
from importlib import import_module

import typer

from highrank_plugins.cli.user_layers import UserDir


def archs(user_dir: UserDir = None) -> None:
    """Print all architectures as a Markdown document (docs/archs.md)."""
    logging.disable(logging.INFO)  # fairseq's
    import highrank_plugins

    highrank_plugins.register()
    # by name: mypy checks this package, and not the dataclasses that fairseq reads
    typer.echo(import_module("highrank_plugins.models.arch_table").arch_table(), nl=False)
