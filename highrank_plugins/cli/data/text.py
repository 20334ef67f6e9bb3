"""Provide `highrank data check-text`, `pieces` and `binarise`: text before fairseq sees it."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.data.bitext import language_pair
from highrank_plugins.cli.options import names
from highrank_plugins.cli.user_error import user_errors
from highrank_plugins.common.folders import output_folder, refuse_mixture, whole_folder
from highrank_plugins.common.processes import usable_cores

Languages = Annotated[str, typer.Option(help="Languages, separated by commas.")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Number of processes. [default: number of cores]", show_default=False),
]


class Algorithm(StrEnum):
    """Name the algorithms that learn pieces."""

    SENTENCEPIECE = "sentencepiece"
    SUBWORD_NMT = "subword_nmt"


def check_text(
    files: Annotated[list[Path], "Files whose lines belong together, plain or NAME.gz."],
) -> None:
    """Check text: UTF-8, no empty lines, equal numbers of lines.

    Example: highrank data check-text train.en train.de

    Also refuses overlong lines, NUL, CR, byte order marks and words that fairseq reserves.
    """
    from highrank_plugins.common.text_lines import NO_EMPTY_LINES, check_texts

    with user_errors():
        for file in files:
            refuse_mixture(file.parent)
        count = check_texts(files, NO_EMPTY_LINES)
    typer.echo(f"{count} lines in {', '.join(map(str, files))}")


def pieces(
    text: Annotated[Path, "Directory with {train,valid,test}.LANGUAGE."],
    output: Annotated[Path, "Directory for the piece model and the text as pieces."],
    languages: Languages,
    vocab_size: Annotated[int, typer.Option(help="Number of pieces, shared by all languages.")],
    character_coverage: Annotated[
        float,
        typer.Option(
            min=0.98,
            max=1,
            help="Share of characters that SentencePiece covers; rarer ones become unknown.",
        ),
    ] = 1.0,
    algorithm: Annotated[
        Algorithm, "Algorithm. subword_nmt tokenises like Moses, and learns --vocab-size merges."
    ] = Algorithm.SENTENCEPIECE,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Learn from N lines of each training text.")
    ] = None,
    processes: Processes = None,
) -> None:
    """Learn pieces (BPE), and write all text as pieces.

    Example: highrank data pieces text pieces --languages en,de --vocab-size 8000

    Learns from the training text alone.
    """
    from highrank_plugins.common.text_lines import PARALLEL, check_texts
    from highrank_plugins.data import pieces as making
    from highrank_plugins.data.binarising import PARTS
    from highrank_plugins.data.parallel import refuse_other_languages

    with user_errors():
        training = {name: text / f"train.{name}" for name in names("--languages", languages)}
    workers = processes or usable_cores()
    with user_errors(), whole_folder(output, text) as new:  # created before the work
        refuse_other_languages(output, training)
        for part in PARTS:
            files = [text / f"{part}.{name}" for name in training]
            check_texts(files, PARALLEL)
        if algorithm == Algorithm.SENTENCEPIECE:
            model = making.learn_pieces(
                list(training.values()),
                new / "pieces",
                vocab_size=vocab_size,
                character_coverage=character_coverage,
                sample=sample,
            )
            encoders = dict.fromkeys(training, making.encoder(model))
        else:
            codes = making.learn_codes(
                training,
                new / "codes",
                operations=vocab_size,
                sample=sample,
                processes=workers,
            )
            encoders = {name: making.code_encoder(codes, name) for name in training}
        for name, encode in encoders.items():
            for part in PARTS:
                file = f"{part}.{name}"
                making.write_pieces(encode, text / file, new / file, workers)


def binarise(
    pieces: Annotated[Path, "Directory with {train,valid,test}.LANGUAGE."],
    output: Annotated[Path, "Directory for the binarised data."],
    languages: Annotated[str, typer.Option(help="SOURCE,TARGET.")],
    processes: Processes = None,
) -> None:
    """Binarise text faster than fairseq-preprocess.

    Example: highrank data binarise pieces data-bin --languages en,de

    Writes the same bytes as fairseq-preprocess --joined-dictionary.
    """
    from highrank_plugins.data import binarising

    logging.disable(logging.INFO)  # hides fairseq's log
    with user_errors(), output_folder(output, pieces):
        binarising.binarise(pieces, output, language_pair(languages), processes or usable_cores())
