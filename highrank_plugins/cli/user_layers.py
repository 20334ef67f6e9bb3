"""Layers of a user's own for our commands, as fairseq's commands take them."""

import logging
from argparse import Namespace
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors


def _import(user_dir: Path | None) -> Path | None:
    if user_dir is None:
        return None
    with user_errors():
        logging.disable(logging.INFO)  # fairseq's
        import highrank_plugins

        highrank_plugins.register()
        from fairseq.utils import import_user_module

        import_user_module(Namespace(user_dir=str(user_dir)))
    return user_dir


# imports the package when it is parsed: few commands look at its value
UserDir = Annotated[
    Path | None,
    typer.Option(
        "--user-dir",
        callback=_import,
        exists=True,
        file_okay=False,
        help="Package with layers of your own, as in fairseq.",
    ),
]
