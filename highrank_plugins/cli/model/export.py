"""`highrank model export` and `import`: a model as a folder without pickle, and back."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.cli.user_layers import UserDir


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="Of fairseq-train or `highrank model average`.")
    ],
    output: Annotated[Path, typer.Option(help="The new folder.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Where the dictionaries are (default: where the training had them)."),
    ] = None,
    pieces: Annotated[
        Path | None,
        typer.Option(help="What cut the text: SentencePiece's model, or subword-nmt's codes."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="A recipe's results.json, whose scores the card gives.")
    ] = None,
    licence: Annotated[str, typer.Option("--license", help="For the model's card.")] = "unknown",
    user_dir: UserDir = None,
) -> None:
    """Write a model as safetensors with configuration, dictionaries, pieces and a card."""
    from highrank_plugins.reports.model_folder import export_model

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        export_model(checkpoint, output, data, licence, pieces, results)
        typer.echo(f"{output}: {', '.join(sorted(path.name for path in output.iterdir()))}")


def import_model(
    folder: Annotated[Path, typer.Argument(help="Written by `highrank model export`.")],
    output: Annotated[Path, typer.Option(help="The checkpoint to write.")],
    user_dir: UserDir = None,
) -> None:
    """Write the checkpoint of an exported model, for fairseq."""
    from highrank_plugins.reports import model_folder

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        model_folder.import_model(folder, output)
        typer.echo(output)
