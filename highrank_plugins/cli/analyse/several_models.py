"""Provide `highrank analyse spectra` and `compare`: compare several models."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from highrank_plugins.cli.analyse.running import (
    Checkpoint,
    Output,
    Plot,
    Segment,
    Split,
    Tokens,
    measuring,
    report,
)
from highrank_plugins.cli.options import Data, Device, UserDir

if TYPE_CHECKING:
    from highrank_plugins.common.figures import Series


def spectra(
    results: Annotated[list[Path], "Results of `analyse spectrum --output NAME.json`."],
    curve: Annotated[
        Literal["relative", "cumulative"],
        "Curve of --plot: σᵢ/σ₁ over i, or the share of singular values up to each σᵢ/σ₁.",
    ] = "relative",
    linear: Annotated[
        int | None, typer.Option(min=2, help="Plot the first N relative values on linear axes.")
    ] = None,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Show the ranks of several models side by side.

    Example: highrank analyse spectra softmax.json mos.json --plot spectra.svg

    The plot shows the relative singular values, as figure 7 of Parthiban et al. 2021 does with
    --linear 500, or as figure 1 of Yang et al. 2018 does with --curve cumulative.
    """
    with measuring(plot):
        from highrank_plugins.common.figures import Lines
        from highrank_plugins.common.files import plain
        from highrank_plugins.reports.plots import draw
        from highrank_plugins.results.measures import read_spectra

        if linear is not None and curve != "relative":
            raise ValueError("--linear draws relative values; leave --curve out")
        found = read_spectra(results)
        rows = [plain(spectrum) for spectrum in found]
        for row in rows:
            del row["singular_values"]  # the input files hold them
        report({"models": rows}, output)
        if plot is not None:
            draw_curve = _cumulative if curve == "cumulative" else _relative
            curves = {
                f"{s.name} (rank {s.press_rank:,})": draw_curve(s.relative_values[:linear])
                for s in found
            }
            axes, scale = ("index i of the singular value", "σᵢ / σ₁"), "loglog"
            if curve == "cumulative":
                axes, scale = ("σᵢ / σ₁", "share of the singular values up to it"), "linear"
            elif linear is not None:
                scale = "linear"
            draw(plot, Lines(curves, "Singular values of the log-probabilities", axes, scale))


def _relative(values: list[float]) -> "Series":
    """Return the curve of descending relative values over their index."""
    return range(1, len(values) + 1), values


def _cumulative(values: list[float]) -> "Series":
    """Return the curve of the share of values up to each of them."""
    return values[::-1], [(i + 1) / len(values) for i in range(len(values))]


def compare(
    first: Checkpoint,
    second: Annotated[Path, "A model with the same dictionary."],
    data: Data,
    margin: Annotated[float, "Show tokens whose −log P differs by at least this, in nats."] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Number of tokens to show.")] = 20,
    words: Annotated[int, typer.Option(min=1, help="Number of words to show before each.")] = 30,
    top: Annotated[int, typer.Option(min=1, help="Number of most probable words to show.")] = 5,
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    device: Device = None,
    contexts: Annotated[
        Path | None, "File to write for `python -m recipes.synthetic contexts`."
    ] = None,
    output: Output = None,
    user_dir: UserDir = None,
) -> None:
    """Find the tokens that the first model predicts better.

    Example: highrank analyse compare mos.pt moc.pt data-bin --margin 2

    The widest margin comes first. Yang et al. (2018) chose the contexts of their table 14 in this
    way, with MoS and MoC.
    """
    with measuring(None):
        from highrank_plugins.common.files import write_text
        from highrank_plugins.inference import disagreements
        from highrank_plugins.inference.collector import Collector

        collectors = [
            Collector.open(path, data, split, tokens=tokens, rows=segment, device=device)
            for path in (first, second)
        ]
        if math.isnan(margin):
            raise ValueError(f"--margin {margin}: must be a number of nats")
        found = disagreements.compare(*collectors, margin=margin, count=count, words=words, top=top)
        report(found, output)
        if contexts is not None:
            lines = [f"{one.context} {one.word}\n" for one in found.disagreements if one.context]
            write_text(contexts, "".join(lines).replace("</s>", "<eos>"))
            if len(lines) < len(found.disagreements):
                typer.echo(f"{contexts}: the first word of the text has no context", err=True)
