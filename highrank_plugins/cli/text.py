"""`highrank check-text` and `highrank pieces`: text before fairseq sees it."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors

PARTS = ("train", "valid", "test")


def check_text(
    files: Annotated[
        list[Path], typer.Argument(help="Files whose lines belong together, plain or NAME.gz.")
    ],
) -> None:
    """Check text strictly: UTF-8, no empty lines, NUL, carriage return or BOM, equal lengths."""
    from highrank_plugins.experiments.parallel_text import check_parallel

    with user_errors():
        count = check_parallel(files)
    typer.echo(f"{count} lines in {', '.join(map(str, files))}")


def pieces(
    text: Annotated[Path, typer.Argument(help="Directory with {train,valid,test}.LANGUAGE.")],
    output: Annotated[Path, typer.Argument(help="Directory for the model and the same files.")],
    languages: Annotated[str, typer.Option(help="Separated by commas.")],
    vocab_size: Annotated[int, typer.Option(help="Number of pieces, shared by all languages.")],
    character_coverage: Annotated[float, typer.Option(help="Rarer characters are unknown.")] = 1.0,
) -> None:
    """Learn SentencePiece BPE from the training text, and write all text as pieces."""
    from highrank_plugins.experiments.pieces import encode, learn_pieces

    names = languages.split(",")
    with user_errors():
        model = learn_pieces(
            [text / f"train.{name}" for name in names],
            output / "pieces",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
        )
        for part in PARTS:
            for name in names:
                encode(model, text / f"{part}.{name}", output / f"{part}.{name}")
