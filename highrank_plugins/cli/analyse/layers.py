"""`highrank analyse spectrum`, `components` and `retention`: the output layer along a text."""

from typing import Annotated, Literal

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


def spectrum(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    split: Split = "test",
    tokens: Tokens = None,
    dtype: Annotated[
        Precision,
        typer.Option(help="Of model and matrix; Press rank is that of it; papers: float32."),
    ] = Precision.float32,
    segment: Segment = 500,
    method: Annotated[
        Literal["auto", "tsqr", "gram"],
        typer.Option(help="auto: gram (float64 sums) for float32, tsqr for float64."),
    ] = "auto",
    device: Device = None,
    plot: Plot = None,
) -> None:
    """Rank of the matrix of log-probabilities, contexts × words.

    With float64 the model itself computes in float64: rounding of float32 would fill the rank.
    """
    with along_a_text(plot) as processes:
        from highrank_plugins.collect.collector import Collector
        from highrank_plugins.collect.spectrum import log_prob_spectrum
        from highrank_plugins.experiments import plots

        collector = Collector(
            checkpoint, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
            device=device, processes=processes,
        )  # fmt: skip
        result = log_prob_spectrum(collector, method)
        if result is None:
            return
        report(result, output, hidden=["singular_values"])
        if plot is not None:
            values = result.singular_values
            plots.lines(
                plot, {"σ": (range(1, len(values) + 1), values)},
                f"log-probabilities of {split}: Press rank {result.press_rank} in {dtype.value}",
                ("i", "singular value"), "loglog",
            )  # fmt: skip


def components(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    split: Split = "test",
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Only the first so many; a Mixtape is slow.")
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option(help="Ends of classes of frequent words, as 100,1000 (Mixtape's gates)."),
    ] = None,
    segment: Segment = 500,
    device: Device = None,
    plot: Plot = None,
) -> None:
    """Use of the prior (MoS, MoC), gates by word class (Mixtape), slopes and curve (PLIF, …)."""
    with along_a_text(plot) as processes:
        from highrank_plugins.collect.collector import Collector
        from highrank_plugins.collect.components import component_measures
        from highrank_plugins.experiments import plots

        groups = [] if ends is None else numbers("--ends", ends, int)
        collector = Collector(
            checkpoint, data, split, tokens=tokens, rows=segment, device=device,
            processes=processes,
        )  # fmt: skip
        result = component_measures(collector, groups)
        if result is None:
            return
        report(result, output, hidden=["curve"])
        if plot is None:
            return
        if result.prior is not None:
            shares = {str(k): p for k, p in enumerate(result.prior.mean_prior.tolist(), 1)}
            plots.bars(plot, shares, f"mean prior on {split}", ("component", "mean π"))
        elif result.gates is not None:
            largest = {f"{g.first}–{g.last - 1}": g.largest for g in result.gates}
            plots.bars(plot, largest, f"gates on {split}", ("words by frequency", "mean largest π"))
        elif result.curve is not None:
            plots.lines(plot, {"f": result.curve}, "pointwise function", ("z", "f(z)"))
        else:
            raise ValueError(f"--plot: there is nothing to draw. {result.absent['prior']}")


def retention(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    dtype: Dtype = Precision.float32,
    device: Device = None,
    plot: Plot = None,
) -> None:
    """Share of the logits' gradient that the vocabulary matrix lets through, by batch."""
    with along_a_text(plot) as processes:
        from highrank_plugins.collect.collector import Collector
        from highrank_plugins.collect.retention import retention as measure
        from highrank_plugins.experiments import plots

        collector = Collector(
            checkpoint, data, split, tokens=tokens, rows=segment, dtype=dtype.value,
            device=device, processes=processes,
        )  # fmt: skip
        result = measure(collector)
        if result is None:
            return
        report(result, output, hidden=["batches", "first"])
        if plot is not None:
            series = {"batch": (result.first, result.batches)}
            title = f"gradient retention on {split}: {result.whole:.3f}"
            plots.lines(plot, series, title, ("token", "‖G P‖ / ‖G‖"))
