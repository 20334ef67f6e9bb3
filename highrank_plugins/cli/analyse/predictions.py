"""`highrank analyse kld` and `predictions`: what a model predicts along a text."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.analyse.options import (
    Checkpoint,
    Data,
    Device,
    Dtype,
    Output,
    Plot,
    Precision,
    Segment,
    Split,
    Tokens,
)
from highrank_plugins.cli.analyse.running import along_a_text, report
from highrank_plugins.cli.number_lists import numbers


def kld(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    other: Annotated[
        Path | None, typer.Option(help="A second checkpoint, Q, of the same dictionary.")
    ] = None,
    pairs: Annotated[
        str, typer.Option(help="How many pairs of contexts are drawn; all: the exact mean.")
    ] = "10000",
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    dtype: Dtype = Precision.float32,
    device: Device = None,
    plot: Plot = None,
) -> None:
    """Mean KL(P_i ‖ Q_j) of predictions in two contexts i, j, drawn independently, in nats.

    With --other also KL(P_i ‖ Q_i), both models in the same context.
    """
    with along_a_text(plot) as processes:
        from highrank_plugins.collect.collector import Collector
        from highrank_plugins.collect.divergences import divergences
        from highrank_plugins.experiments import plots

        drawn = None if pairs == "all" else numbers("--pairs", pairs, int)[0]
        first, second = (
            None if path is None else Collector(
                path, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
                device=device, processes=processes,
            )
            for path in (checkpoint, other)
        )  # fmt: skip
        assert first is not None  # of checkpoint, which is given
        result = divergences(first, second, drawn, seed)
        if result is None:
            return
        report(result, output, seed=seed)
        if plot is not None:
            means = {
                "sampled": result.sampled and result.sampled.mean,
                "all pairs": result.all_pairs,
                "same context": result.matched and result.matched.mean,
            }
            shown = {name: mean for name, mean in means.items() if mean is not None}
            plots.bars(plot, shown, f"divergence of predictions on {split}", ("pairs", "nats"))


def predictions(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    top: Annotated[str, typer.Option(help="k of the shares of words in the top k.")] = "1,5,10",
    bands: Annotated[
        str, typer.Option(help="Where bands of training counts end.")
    ] = "10,100,1000,10000",
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    dtype: Dtype = Precision.float32,
    device: Device = None,
    plot: Plot = None,
) -> None:
    """Top-k share, entropy, and perplexity by how frequent the word was in training."""
    with along_a_text(plot) as processes:
        from highrank_plugins.collect.collector import Collector
        from highrank_plugins.collect.predictions import prediction_measures
        from highrank_plugins.experiments import plots

        ks, edges = numbers("--top", top, int), numbers("--bands", bands, int)
        collector = Collector(
            checkpoint, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
            device=device, processes=processes,
        )  # fmt: skip
        result = prediction_measures(collector, ks, edges)
        if result is None:
            return
        report(result, output)
        if plot is not None:
            by_band = {
                f"{band.low}–{'' if band.high is None else band.high - 1}": band.perplexity
                for band in result.bands
                if band.perplexity is not None
            }
            plots.bars(plot, by_band, f"perplexity on {split}", ("training count", "perplexity"))
