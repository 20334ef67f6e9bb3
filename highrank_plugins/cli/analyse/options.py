"""Options that several subcommands of `highrank analyse` share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


Checkpoint = Annotated[
    Path, typer.Argument(help="Language model or translation model, of fairseq or of ours.")
]
Data = Annotated[str, typer.Argument(help="Directory of fairseq-preprocess.")]
Output = Annotated[Path | None, typer.Option(help="JSON file for the result.")]
Plot = Annotated[Path | None, typer.Option(help="Draw into FILE.png, .svg or .pdf.")]
Split = Annotated[str, typer.Option(help="The text whose contexts are taken.")]
Tokens = Annotated[int | None, typer.Option(min=2, help="Only the first so many.")]
Segment = Annotated[int, typer.Option(min=1, help="Tokens that are held at a time.")]
Dtype = Annotated[Precision, typer.Option(help="Precision in which the model computes.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N (default: a GPU if there is one).")
]
