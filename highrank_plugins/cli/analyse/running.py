"""Define the options that subcommands of `highrank analyse` share, and their common steps."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highrank_plugins.cli.user_error import user_errors

if TYPE_CHECKING:
    from highrank_plugins.inference.processes import Processes


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


Checkpoint = Annotated[Path, "Language or translation model, fairseq's or ours."]
DataOfCheckpoint = Annotated[str | None, "Binarised data of --checkpoint."]
Output = Annotated[Path | None, typer.Option(help="JSON file to write the result to.")]
Plot = Annotated[Path | None, "Draw into FILE.png, .svg or .pdf."]
Split = Annotated[str, "Split whose contexts are used."]
Tokens = Annotated[int | None, typer.Option(min=2, help="Use only the first N tokens.")]
Segment = Annotated[int, typer.Option(min=1, help="Number of tokens held in memory at a time.")]
Dtype = Annotated[Precision, "Precision of the model."]


@contextmanager
def measuring(plot: Path | None) -> Iterator[None]:
    """Refuse a plot that cannot be drawn, silence fairseq, and turn errors into messages."""
    logging.disable(logging.INFO)  # hides fairseq's log
    with user_errors():
        from highrank_plugins.reports.plots import check_plot

        check_plot(plot)
        yield


@contextmanager
def along_a_text(plot: Path | None) -> Iterator["Processes"]:
    """Do as `measuring`, and join the processes that torchrun started."""
    with measuring(plot):
        from highrank_plugins.inference.processes import started

        with started() as processes:
            yield processes


def report(
    result: Any, output: Path | None, hidden: Sequence[str] = (), **more: object
) -> dict[str, Any]:
    """Print the result, and write it to the JSON file with its provenance.

    Args:
        result: dataclass, named tuple, or dictionary.
        hidden: names of values that are too long to print.
        more: values that precede the result in both.
    Returns:
        the result as plain values.
    """
    from highrank_plugins.common.files import plain, write_json
    from highrank_plugins.common.provenance import git_state, hardware, typed_command, versions

    found = plain(more) | plain(result)
    shown = {name: value for name, value in found.items() if name not in hidden}
    typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    if output is not None:
        made = {"command": typed_command(), "versions": versions(), "git": git_state()}
        write_json(output, found | made | {"hardware": hardware()})
    return found
