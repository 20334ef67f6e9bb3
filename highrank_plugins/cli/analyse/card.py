"""`highrank analyse card`: one page about the output layer of a checkpoint."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.cli.user_layers import UserDir


def card(
    checkpoint: Annotated[Path, typer.Argument(help="Of any model, also a stock one.")],
    output: Annotated[
        Path | None,
        typer.Option(help="The HTML file to write (default: CHECKPOINT with the ending .html)."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Directory of fairseq-preprocess (default: look at the weights only)."),
    ] = None,
    split: Annotated[str, typer.Option(help="The text of --data to predict.")] = "test",
    tokens: Annotated[int, typer.Option(min=2, help="Only the first so many.")] = 5000,
    json: Annotated[Path | None, typer.Option(help="A JSON file for the numbers.")] = None,
    user_dir: UserDir = None,
) -> None:
    """Make a page on a checkpoint: configuration, ranks, divergence, components, samples.

    The page is one file, which needs neither network nor scripts. What does not apply to the model
    is on the page with the reason. More in docs/card.md.
    """
    logging.disable(logging.INFO)  # fairseq's
    from highrank_plugins.common.files import write_json, write_text
    from highrank_plugins.common.plain_values import plain
    from highrank_plugins.common.provenance import typed_command
    from highrank_plugins.reports.card.gather import make_card
    from highrank_plugins.reports.card.render import render

    output = checkpoint.with_suffix(".html") if output is None else output
    with user_errors():
        made = make_card(checkpoint, data, split, tokens, typed_command())
        write_text(output, render(made))
        if json is not None:
            write_json(json, plain(made.plain()))
    typer.echo(output)
