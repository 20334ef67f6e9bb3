"""Draw the figures of README and docs from the records: python scripts/draw_figures.py.

    --output DIR    where to write them (default: docs/images)

The same records and version of matplotlib give the same bytes.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from highrank_plugins.common.formatting import Scatter
from highrank_plugins.reports.plots import STYLE, draw, draw_figure, study_figures
from highrank_plugins.results.comparison import compare_records

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
INK, PALE = "#1f2933", "#eef2f6"


def study(name: str, metric: str, x: str) -> Scatter:
    """Return the metric of the systems of a study over `x`."""
    records = sorted((RECORDS / name).glob("*.json"))
    (figure,) = study_figures(compare_records(records, metric), x)
    return figure


def draw_overview(path: Path) -> None:
    """Draw the two parts of a head above the layers' scores on Penn Treebank, for a phone, too."""
    figure = pyplot.figure(figsize=(4.8, 6.2), layout="constrained")
    above, below = (part.subplots() for part in figure.subfigures(2, 1, height_ratios=(1, 1.2)))
    draw_parts(above)
    title = "Penn Treebank, small scale: mean ± s.d. of 3 seeds"
    draw_figure(below, replace(study("ptb_small", "test_perplexity", "test_rank"), title=title))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw_parts(axes: Axes) -> None:
    axes.set(xlim=(0, 10), ylim=(0, 9.8))
    axes.axis("off")
    axes.set_title("One output layer = structure × pointwise function")
    boxes = [
        (0.1, "trunk", "Transformer\nLSTM\nAWD-LSTM\nyour network", "features"),
        (3.6, "structure", "softmax\nMoC\nMoS\nMixtape\nyours", "logits"),
        (7.1, "function", "identity\nSigSoftmax\nGSS\nPLIF\nyours", ""),
    ]
    for x, title, choices, arrow in boxes:
        own = title != "trunk"
        style = dict[str, Any](edgecolor=INK, linewidth=1.2 if own else 0.7)
        axes.add_patch(FancyBboxPatch((x, 3.3), 2.7, 6.2, "round,pad=0.1", facecolor=PALE, **style))
        axes.text(x + 1.35, 8.9, title, ha="center", va="center", weight="bold")
        axes.text(x + 1.35, 6.0, choices, ha="center", va="center", linespacing=1.5)
        if arrow:
            ends: dict[str, Any] = {"xy": (x + 3.45, 6.2), "xytext": (x + 2.8, 6.2)}
            axes.annotate("", **ends, arrowprops={"arrowstyle": "-|>", "color": INK})
            axes.text(x + 3.1, 2.5, arrow, ha="center", va="center")
    axes.annotate(
        "", xy=(8.45, 1.8), xytext=(8.45, 3.2), arrowprops={"arrowstyle": "-|>", "color": INK}
    )
    words = "exact log-probabilities, or the loss and its\ngradients, chunk by chunk"
    axes.text(5.0, 0.7, words, ha="center", va="center")


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().output
    pyplot.rcParams.update(STYLE | {"text.color": INK})
    draw_overview(folder / "overview.svg")
    for name, metric in {"ptb_small": "test_perplexity", "multi30k_small": "sacrebleu"}.items():
        draw(folder / f"{name}_rank.svg", study(name, metric, "test_rank"))


if __name__ == "__main__":
    main()
