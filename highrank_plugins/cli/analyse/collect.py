"""`highrank analyse collect`."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.analyse.options import (
    Checkpoint,
    Data,
    Device,
    Precision,
    Segment,
    Split,
    Tokens,
)
from highrank_plugins.cli.analyse.running import along_a_text, report
from highrank_plugins.cli.user_layers import UserDir


def collect(
    checkpoint: Checkpoint,
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for the .npy files.")],
    what: Annotated[
        str, typer.Option(help="Of log_probs, logits, features, targets.")
    ] = "log_probs,features,targets",
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    dtype: Annotated[
        Precision, typer.Option(help="In which the model computes and numbers are stored.")
    ] = Precision.float32,
    save_seconds: Annotated[
        float, typer.Option(min=0, help="How often it is noted how far it is.")
    ] = 60,
    device: Device = None,
    user_dir: UserDir = None,
) -> None:
    """Write what a model predicts along a text into memory maps, a row per token.

    Killed and started again, it goes on. Under torchrun every process has a part of the text.
    """
    with along_a_text(None) as processes:
        from highrank_plugins.inference.collector import Collector
        from highrank_plugins.inference.on_disk import write_collection

        collector = Collector.open(
            checkpoint, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
            device=device, processes=processes,
        )  # fmt: skip
        done = write_collection(collector, output, what.split(","), save_seconds)
        if processes.rank == 0:
            report(done, None)
