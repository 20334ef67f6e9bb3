"""`highrank analyse …`: the papers' measures of a checkpoint."""

import json
import logging
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.user_error import user_errors

analyse = typer.Typer(no_args_is_help=True, help="The papers' measures of a checkpoint.")


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


@analyse.callback()
def _group() -> None:
    """Keeps `spectrum` a subcommand while it is the only one."""


@analyse.command()
def spectrum(
    checkpoint: Annotated[Path, typer.Argument(help="Of awd_lstm_lm_<head>.")],
    data: Annotated[str, typer.Argument(help="Directory of fairseq-preprocess.")],
    output: Annotated[Path, typer.Option(help="JSON file for ranks and singular values.")],
    split: Annotated[str, typer.Option(help="The text whose contexts are the rows.")] = "test",
    tokens: Annotated[int | None, typer.Option(min=2, help="Only the first so many.")] = None,
    dtype: Annotated[
        Precision, typer.Option(help="Press rank is that of this precision; papers: float32.")
    ] = Precision.float32,
    segment: Annotated[int, typer.Option(min=1, help="Rows that are held at a time.")] = 500,
) -> None:
    """Rank of the matrix of log-probabilities, contexts × words."""
    from highrank_plugins.collect.spectrum import log_prob_spectrum
    from highrank_plugins.experiments.record import write_json

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        result = log_prob_spectrum(checkpoint, data, split, dtype.value, tokens, segment)
        write_json(output, asdict(result))
    shown = {name: value for name, value in asdict(result).items() if name != "singular_values"}
    json.dump(shown, sys.stdout, indent=2)
    typer.echo()
