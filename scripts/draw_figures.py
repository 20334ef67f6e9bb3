"""Draw the figures of README and docs from the records: python scripts/draw_figures.py.

    --output DIR    where to write them (default: docs/images)

The same records and version of matplotlib give the same bytes.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
# colour per structure (Okabe and Ito's, for colour-blind readers), marker per variant
STYLES = {
    "softmax": ("#000000", "o"),
    "sigsoftmax": ("#E69F00", "s"),
    "gss": ("#56B4E9", "D"),
    "plif": ("#CC79A7", "P"),
    "moc": ("#009E73", "v"),
    "mos": ("#0072B2", "^"),
    "mixtape": ("#D55E00", "X"),
}
NAMES = {"softmax": "softmax", "sigsoftmax": "SigSoftmax", "gss": "GSS", "plif": "PLIF"} | {
    "moc": "MoC", "mos": "MoS", "mixtape": "Mixtape",
}  # fmt: skip
INK, PALE = "#1f2933", "#eef2f6"


def read_scores(study: str, *metrics: str) -> dict[str, list[tuple[float, float]]]:
    """Return mean and standard deviation of each metric over the seeds of each system."""
    values = defaultdict(list)
    for path in sorted((RECORDS / study).glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))["metrics"]
        values[path.stem.rpartition("-")[0]].append([found[name] for name in metrics])
    return {
        system: [(statistics.mean(v), statistics.stdev(v)) for v in zip(*runs, strict=True)]
        for system, runs in values.items()
    }


def draw_overview(path: Path) -> None:
    """Draw how a head is made of two parts, and what the layers reach on Penn Treebank."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.9), width_ratios=(1.25, 1))
    draw_parts(left)
    draw_study(right, "ptb_small", "test_perplexity", "test perplexity")
    right.set_title("Penn Treebank, small scale: mean ± s.d. of 3 seeds", fontsize=9)
    save(figure, path)


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


def draw_study(axes: Axes, study: str, metric: str, label: str) -> None:
    """Draw rank and quality of each system, with the deviation over seeds."""
    for system, scores in read_scores(study, "test_rank", metric).items():
        base, _, variant = system.partition("_")
        colour, marker = STYLES[base]
        (rank, rank_sd), (quality, quality_sd) = scores
        name = NAMES[base] + (" (scaled)" if variant else "")
        look = {"color": colour, "markerfacecolor": "white" if variant else colour}
        axes.errorbar(rank, quality, quality_sd, rank_sd, marker, label=name, capsize=2, **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("rank of the log-probabilities (Press, float32)", fontsize=8.5)
    axes.set_ylabel(label, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7.5, frameon=False, ncols=2, loc="best")


def draw_rank(study: str, metric: str, label: str, path: Path) -> None:
    """Draw rank and quality of all systems of a study."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.4))
    draw_study(axes, study, metric, label)
    save(figure, path)


def save(figure: pyplot.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def main() -> None:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().output
    # text stays text, and no name in the file is random
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "highrank_plugins"})
    pyplot.rcParams.update({"font.family": "sans-serif", "text.color": INK})
    draw_overview(folder / "overview.svg")
    draw_rank("ptb_small", "test_perplexity", "test perplexity", folder / "ptb_small_rank.svg")
    draw_rank("multi30k_small", "sacrebleu", "sacreBLEU", folder / "multi30k_small_rank.svg")


if __name__ == "__main__":
    main()
