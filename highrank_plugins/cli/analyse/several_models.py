"""Provide `highrank analyse spectra`, `gss-grid` and `compare`: compare several models."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.analyse.running import (
    Checkpoint,
    DataOfCheckpoint,
    Output,
    Plot,
    Segment,
    Split,
    Tokens,
    measuring,
    report,
)
from highrank_plugins.cli.options import Data, Device, UserDir, numbers


def spectra(
    results: Annotated[
        list[Path], typer.Argument(help="Written by `analyse spectrum --output NAME.json`.")
    ],
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Show ranks of several models side by side; --plot draws their relative singular values."""
    with measuring(plot):
        from highrank_plugins.common.figures import Lines
        from highrank_plugins.common.files import plain
        from highrank_plugins.reports.plots import draw
        from highrank_plugins.results.measures import read_spectra

        found = read_spectra(results)
        rows = [plain(spectrum) for spectrum in found]
        for row in rows:
            del row["singular_values"]  # the files have them
        report({"models": rows}, output)
        if plot is not None:
            curves = {
                f"{s.name} (rank {s.press_rank:,})": (
                    range(1, len(s.singular_values) + 1),
                    s.relative_values,
                )
                for s in found
            }
            title = "Singular values of the log-probabilities"
            draw(plot, Lines(curves, title, ("i", "σ_i / σ_1"), "loglog"))


SWAPPED = "one checkpoint, whose pointwise function is replaced without training; no substitute"


def gss_grid(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="Records of models, each trained with its own c and k."),
    ] = None,
    rank: Annotated[str, typer.Option(help="Number of the records.")] = "test_rank",
    perplexity: Annotated[str, typer.Option(help="Number of the records.")] = "test_perplexity",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Swap c and k in this softmax model, instead of records.")
    ] = None,
    data: DataOfCheckpoint = None,
    c: Annotated[str, typer.Option(help="With --checkpoint.")] = "-2,-1.5,-1,-0.5,0,0.5,1,1.5,2",
    k: Annotated[str, typer.Option(help="With --checkpoint.")] = "1.25,1.5,1.75,2,2.25,2.5,2.75,3",
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    device: Device = None,
    output: Output = None,
    plot: Plot = None,
    user_dir: UserDir = None,
) -> None:
    """Rank and perplexity over c and k of GSS, and how they correlate.

    Of records of models that were trained with each (Parthiban et al. 2021), or quickly of one
    checkpoint in which only the function is replaced; the output says which. The default grid is
    the paper's for Penn Treebank.
    """
    with measuring(plot):
        from highrank_plugins.reports import plots
        from highrank_plugins.results import gss_grid as grids

        if bool(records) == (checkpoint is not None) or (checkpoint is None) != (data is None):
            raise ValueError("give records, or --checkpoint and --data")
        if checkpoint is None or data is None:
            points = grids.grid_of_records(records or [], rank, perplexity)
        else:
            from highrank_plugins.inference.collector import Collector

            grid = numbers("--c", c, float), numbers("--k", k, float)
            collector = Collector.open(
                checkpoint, data, split, tokens=tokens, rows=segment, device=device
            )
            points = grids.grid_of_swapped(collector, *grid)
        mode = "a model trained for each point" if checkpoint is None else SWAPPED
        report({"mode": mode, "points": points, "correlation": grids.correlation(points)}, output)
        if plot is not None:
            maps = {
                "Press rank": {(p.c, p.k): p.rank for p in points},
                "perplexity": {(p.c, p.k): p.perplexity for p in points},
            }
            plots.maps(plot, maps, ("c", "k"))


def compare(
    first: Checkpoint,
    second: Annotated[Path, typer.Argument(help="A model with the same dictionary.")],
    data: Data,
    margin: Annotated[
        float, typer.Option(help="Least difference of −log P, in nats, of a token to show.")
    ] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Number of tokens to show.")] = 20,
    words: Annotated[int, typer.Option(min=1, help="Number of words to show before each.")] = 30,
    top: Annotated[int, typer.Option(min=1, help="Number of most probable words to show.")] = 5,
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    device: Device = None,
    contexts: Annotated[
        Path | None, typer.Option(help="File to write for `multimode --contexts-file`.")
    ] = None,
    output: Output = None,
    user_dir: UserDir = None,
) -> None:
    """Find the tokens where the first model beats the second by a margin, the widest first.

    Yang et al. (2018) chose the contexts of their table 14 in this way, with MoS and MoC.
    """
    with measuring(None):
        from highrank_plugins.common.files import write_text
        from highrank_plugins.inference import disagreements
        from highrank_plugins.inference.collector import Collector

        collectors = [
            Collector.open(path, data, split, tokens=tokens, rows=segment, device=device)
            for path in (first, second)
        ]
        found = disagreements.compare(*collectors, margin=margin, count=count, words=words, top=top)
        report(found, output)
        if contexts is not None:
            lines = [f"{one.context} {one.word}\n" for one in found.disagreements if one.context]
            write_text(contexts, "".join(lines).replace("</s>", "<eos>"))
