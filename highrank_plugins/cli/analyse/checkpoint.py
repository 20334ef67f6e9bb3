"""Provide `highrank analyse card` and `collect`: a checkpoint and its predictions."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.analyse.running import (
    Checkpoint,
    Precision,
    Segment,
    Split,
    Tokens,
    along_a_text,
    report,
)
from highrank_plugins.cli.options import Data, Device, UserDir, names


def card(
    checkpoint: Annotated[Path, "Any fairseq checkpoint, ours or stock."],
    text: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Binarised data to predict (default: weights only)."),
    ] = None,
    output: Annotated[
        Path | None, "HTML file to write (default: CHECKPOINT with the ending .html)."
    ] = None,
    data: Annotated[str | None, "The same as DATA."] = None,
    split: Annotated[str, "Split of DATA to predict."] = "test",
    tokens: Annotated[int, typer.Option(min=2, help="Use only the first N tokens.")] = 5000,
    json: Annotated[Path | None, "JSON file to write the numbers to."] = None,
    user_dir: UserDir = None,
) -> None:
    """Write a page about a checkpoint's output layer.

    Example: highrank analyse card checkpoint_best.pt data-bin

    The page also shows the configuration, the divergence and the components. It is one file, which
    needs neither network nor scripts. A section that does not apply to the model gives the reason.
    More in docs/howto/card.md.
    """
    logging.disable(logging.INFO)  # hides fairseq's log
    from highrank_plugins.common.files import plain, write_json, write_text
    from highrank_plugins.common.provenance import typed_command
    from highrank_plugins.reports.card.gather import make_card
    from highrank_plugins.reports.card.render import render

    output = checkpoint.with_suffix(".html") if output is None else output
    if text is not None and data is not None:
        raise ValueError(f"DATA {text} and --data {data} are the same option: give one of them")
    made = make_card(checkpoint, text or data, split, tokens, typed_command())
    write_text(output, render(made))
    if json is not None:
        write_json(json, plain(made.plain()))
    typer.echo(output)


def collect(
    checkpoint: Checkpoint,
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for the .npy files.")],
    what: Annotated[
        str, "Quantities to write: log_probs, logits, features, targets."
    ] = "log_probs,features,targets",
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    dtype: Annotated[Precision, "Precision of the model and of the files."] = Precision.float32,
    save_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds between two saves of the progress.")
    ] = 60,
    device: Device = None,
    user_dir: UserDir = None,
) -> None:
    """Write a model's predictions for a text to .npy files.

    Example: highrank analyse collect checkpoint_best.pt data-bin --output arrays

    The files have one row per token and can be memory-mapped. Resumes an interrupted run. Under
    torchrun each process takes a part of the text.
    """
    with along_a_text(None) as processes:
        from highrank_plugins.inference.collector import Collector
        from highrank_plugins.inference.on_disk import write_collection

        quantities = names("--what", what)
        collector = Collector.open(
            checkpoint, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
            device=device, processes=processes,
        )  # fmt: skip
        done = write_collection(collector, output, quantities, save_seconds)
        if processes.rank == 0:
            report(done, None)
