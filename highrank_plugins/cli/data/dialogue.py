"""`highrank data dialogue-files` and `dialogue-text`: dialogues as contexts and responses."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors

Corpus = Annotated[Path, typer.Argument(help="Folder with the corpus of Zhao et al. 2017.")]


def dialogue_files(corpus: Corpus) -> None:
    """Print the files that `highrank data dialogue-text` reads, a line each."""
    from highrank_plugins.data.dialogue.text import input_files

    with user_errors():
        typer.echo("\n".join(map(str, input_files(corpus))))


def dialogue_text(
    corpus: Corpus,
    output: Annotated[Path, typer.Argument(help="Directory for contexts and responses.")],
    context: Annotated[int, typer.Option(min=1, help="Utterances that a response sees.")] = 9,
) -> None:
    """Write dialogues as contexts, responses and references, a line each."""
    from highrank_plugins.data.dialogue.text import write_parallel

    with user_errors():
        for name, counts in write_parallel(corpus, output, context).items():
            typer.echo(f"{name}: {counts.contexts} contexts, {counts.references} references")
