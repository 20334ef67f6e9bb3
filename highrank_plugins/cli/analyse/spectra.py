"""`highrank analyse spectra`: what `analyse spectrum` found of several models, in one plot."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli.analyse.options import Output, Plot
from highrank_plugins.cli.analyse.running import measuring, report


def spectra(
    results: Annotated[
        list[Path], typer.Argument(help="Written by `analyse spectrum --output NAME.json`.")
    ],
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Ranks of several models side by side; with --plot their singular values, the largest 1."""
    with measuring(plot):
        from highrank_plugins.common.figures import Lines
        from highrank_plugins.common.plain_values import plain
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
