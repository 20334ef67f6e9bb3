"""`highrank data lm-corpus`: the text of a language model before training."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.common.processes import usable_cores


def lm_corpus(
    name: Annotated[str, typer.Argument(help="ptb, wikitext2, one_billion_word or text8.")],
    data: Annotated[Path, typer.Option(help="Folder with the files as they are published.")],
    output: Annotated[Path, typer.Option(help="Folder for the text, or for binarised files.")],
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Keep so many of the most frequent words; others become <unk>. "
            "[default: all; one_billion_word: 100000]"
        ),
    ] = None,
    max_train_lines: Annotated[
        int | None, typer.Option(help="Take only the beginning of the training text.")
    ] = None,
    other_text: Annotated[
        bool, typer.Option("--other-text", help="Accept counts that are not the published ones.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, for one_billion_word. [default: the number of cores]"),
    ] = None,
) -> None:
    """Check a published corpus, count it, and write it as fairseq needs it."""
    from highrank_plugins.data.corpora import CorpusOptions, prepare_corpus

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        workers = workers or usable_cores()
        options = CorpusOptions(vocab_size, max_train_lines, other_text, workers)
        for line in prepare_corpus(name, data, output, options):
            typer.echo(line)
