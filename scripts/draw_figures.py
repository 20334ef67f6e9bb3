"""Draw the figures of README and docs from the records: python scripts/draw_figures.py.

    --output DIR    where to write them (default: docs/images)

The same records and version of matplotlib give the same bytes.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from highrank_plugins.common.formatting import Scatter
from highrank_plugins.reports.plots import draw, fill
from highrank_plugins.reports.study_plots import study_figures
from highrank_plugins.reports.style import STYLE
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
    """Draw the two parts of a head, and the layers' scores on Penn Treebank."""
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9.6, 3.9), width_ratios=(1.15, 1), layout="constrained"
    )
    draw_parts(left)
    fill([right], [study("ptb_small", "test_perplexity", "test_rank")])
    right.set_title("Penn Treebank, small scale: mean ± s.d. of 3 seeds", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw_parts(axes: Axes) -> None:
    axes.set(xlim=(0, 10), ylim=(0, 10))
    axes.axis("off")
    axes.set_title("One output layer = structure × pointwise function", fontsize=9)
    boxes = [
        (0.2, "trunk", "Transformer\nLSTM\nAWD-LSTM\nyour network", "features g"),
        (3.45, "structure", "softmax\nMoC\nMoS\nMixtape\nyours", "logits z"),
        (6.7, "function f", "identity\nSigSoftmax\nGSS\nPLIF\nyours", ""),
    ]
    for x, title, choices, arrow in boxes:
        own = title != "trunk"
        style = {"boxstyle": "round,pad=0.1", "edgecolor": INK, "linewidth": 1.2 if own else 0.7}
        axes.add_patch(FancyBboxPatch((x, 3.6), 2.4, 5.2, facecolor=PALE, **style))
        axes.text(x + 1.2, 8.35, title, ha="center", va="center", fontsize=9, weight="bold")
        axes.text(x + 1.2, 5.9, choices, ha="center", va="center", fontsize=8.5, linespacing=1.5)
        if arrow:
            ends = {"xy": (x + 3.15, 6.2), "xytext": (x + 2.5, 6.2)}
            axes.annotate("", **ends, arrowprops={"arrowstyle": "-|>", "color": INK})
            axes.text(x + 2.83, 2.95, arrow, ha="center", va="center", fontsize=8)
    axes.annotate(
        "", xy=(7.9, 2.2), xytext=(7.9, 3.4), arrowprops={"arrowstyle": "-|>", "color": INK}
    )
    words = (
        "exact log-probabilities [N, M], or the loss and its\n"
        "gradients, chunk by chunk: no N × K × M tensor"
    )
    axes.text(5.0, 1.2, words, ha="center", va="center", fontsize=8.5)


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
