"""Plot measures with matplotlib, which is needed only for plots."""

import importlib.util
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import escape

from highrank_plugins.common.formatting import Figure, Lines, Scatter
from highrank_plugins.reports.style import (
    COLOURS,
    STYLE,
    colour_of,
    layer_of,
    literal,
    markers_of,
    number_log_axis,
    place_labels,
)

# placeholder colours, which `svg` replaces by the page's
_PAGE_COLOURS = {
    "#010203": "--ink", "#010204": "--dim", "#010205": "--line",
    "#010206": "--c0", "#010207": "--c1", "#010208": "--c2",
}  # fmt: skip
_COLOUR_OF = {variable: colour for colour, variable in _PAGE_COLOURS.items()}
_SVG_STYLE = {
    "svg.fonttype": "none",  # keeps text as text
    "text.color": _COLOUR_OF["--ink"],
    "axes.edgecolor": _COLOUR_OF["--line"],
    "axes.labelcolor": _COLOUR_OF["--dim"],
    "xtick.color": _COLOUR_OF["--dim"],
    "ytick.color": _COLOUR_OF["--dim"],
    "legend.framealpha": 0,
}
_SVG_CYCLE = [_COLOUR_OF[name] for name in ("--c0", "--c1", "--c2")]
MOST_LABELS = 12  # largest number of bars with labels
FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path | None) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed."""
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the name must end with {', '.join(FORMATS)}")
    if not is_available():
        raise ValueError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib, "
            "or leave --plot out"
        )


def is_available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element whose colours follow the page around it.

    The page has the CSS variables --ink, --dim, --line, and --c0, --c1, --c2 for curves.
    """
    from io import StringIO

    from cycler import cycler
    from matplotlib import rc_context

    text = StringIO()
    cycle = {"axes.prop_cycle": cycler(color=_SVG_CYCLE), "svg.hashsalt": figure.title}
    with rc_context(_SVG_STYLE | cycle):
        drawn = rendered(figure)
        drawn.set_size_inches(5, 3.2)
        drawn.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", found, flags=re.DOTALL)
    found = re.sub(r' xmlns(:\w+)?="[^"]*"', "", found).replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', found))
    found = re.sub(r' id="([^"]*)"', lambda own: own[0] if own[1] in used else "", found)
    for colour, variable in _PAGE_COLOURS.items():
        found = found.replace(colour, f"var({variable})")
    names = figure.series if isinstance(figure, Lines) else filter(None, figure.groups)
    said = f"{figure.title}; {figure.axes[1]} over {figure.axes[0]}: {', '.join(names)}"
    return found.replace("<svg ", f'<svg role="img" aria-label="{escape(said)}" ', 1)


def draw(path: Path, *figures: Figure) -> None:
    """Write figures into a file, side by side."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawn

    with rc_context(STYLE):
        drawn = Drawn(figsize=(6.5 * len(figures), 4.5), layout="constrained")
        plots = drawn.subplots(1, len(figures), squeeze=False)[0]
        fill(plots, figures)
        save(drawn, path)


def fill(plots: Sequence[Any], figures: Sequence[Figure]) -> None:
    """Draw figures into axes of matplotlib, with a colour for each layer and separated labels."""
    for plot, figure in zip(plots, figures, strict=True):
        _draw_figure(plot, figure, by_layer=True)
    for plot, figure in zip(plots, figures, strict=True):
        if isinstance(figure, Scatter):
            for side in (plot.xaxis, plot.yaxis):
                if side.get_scale() == "log":
                    number_log_axis(side)
            labels = {name: _middle(figure.groups[name]) for name in figure.labelled}
            # labels cover no run, and none of the deviations around the means
            obstacles = []
            for runs in figure.groups.values():
                obstacles += [(run, run) for run in runs]
                if len(runs) > 1:
                    x, y = _middle(runs)
                    dx, dy = (stdev(values) for values in zip(*runs, strict=True))
                    obstacles += [((x - dx, y), (x + dx, y)), ((x, y - dy), (x, y + dy))]
            place_labels(plot, labels, obstacles)


def rendered(figure: Figure) -> Any:
    """Return a figure as matplotlib's."""
    from matplotlib.figure import Figure as Drawn  # needs no display

    drawn = Drawn(figsize=(7, 4.5), layout="constrained")
    _draw_figure(drawn.subplots(), figure)
    return drawn


def _draw_figure(plot: Any, figure: Figure, by_layer: bool = False) -> None:
    plot.set_title(literal(figure.title))
    several = False
    if isinstance(figure, Lines):
        for label, (x, y) in figure.series.items():
            colour = COLOURS.get(layer_of(label)) if by_layer else None
            line = "--" if label in figure.dashed else "-"
            plot.plot(x, _finite(y), line, label=literal(label), color=colour)
        several = len(figure.series) > 1
    elif isinstance(figure, Scatter):
        _draw_scatter(plot, figure)
    else:
        width, several = 0.8 / len(figure.groups), len(figure.groups) > 1
        for number, (name, heights) in enumerate(figure.groups.items()):
            middle = (number - (len(figure.groups) - 1) / 2) * width
            places = [place + middle for place in range(len(heights))]
            plot.bar(places, _finite(list(heights.values())), width, label=literal(name) or None)
            shown = range(0, len(heights), -(-len(heights) // MOST_LABELS))
            plot.set_xticks(shown, [literal(list(heights)[place]) for place in shown])
        plot.tick_params("x", rotation=30)
    plot.set_xlabel(literal(figure.axes[0]))
    plot.set_ylabel(literal(figure.axes[1]))
    if figure.scale in ("logx", "loglog"):
        plot.set_xscale("log")
    if figure.scale in ("log", "loglog"):
        plot.set_yscale("log")
    if several:
        plot.legend()


def _draw_scatter(plot: Any, figure: Scatter) -> None:
    """Draw runs faintly, and their mean with the deviations of both axes."""
    markers = markers_of(list(figure.groups))
    for name, runs in figure.groups.items():
        colour, marker = colour_of(name), markers[name]
        x, y = _middle(runs)
        xs, ys = zip(*runs, strict=True)
        if len(runs) > 1:
            plot.plot(xs, ys, marker, color=colour, alpha=0.3, markersize=4, linestyle="none")
        plot.errorbar(
            x, y, xerr=stdev(xs) if len(runs) > 1 else None,
            yerr=stdev(ys) if len(runs) > 1 else None, fmt=marker, color=colour, capsize=3,
            markersize=7, elinewidth=1,
        )  # fmt: skip
    for names in figure.connected:
        xs, ys = zip(*(_middle(figure.groups[name]) for name in names), strict=True)
        layer, colour = layer_of(names[0]), colour_of(names[0])
        plot.plot(xs, ys, "-", color=colour, linewidth=1, zorder=1, label=layer)
    for name, y in figure.levels.items():
        plot.axhline(
            y, color=colour_of(name), linestyle="--", linewidth=1, zorder=1, label=literal(name)
        )
    if figure.levels or figure.connected:
        plot.legend()
    if all(float(x).is_integer() for runs in figure.groups.values() for x, _ in runs):
        plot.xaxis.get_major_locator().set_params(integer=True)  # no half component
    if figure.frontier:
        xs, ys = zip(*(_middle(figure.groups[name]) for name in figure.frontier), strict=True)
        plot.plot(xs, ys, ":", color="#666666", linewidth=1.2, zorder=1)


def _middle(runs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    xs, ys = zip(*runs, strict=True)
    return mean(xs), mean(ys)


def _finite(values: Sequence[float]) -> list[float]:
    """Return the values, with NaN for infinite ones, which leaves gaps."""
    return [value if math.isfinite(value) else math.nan for value in values]


def save(figure: Any, path: Path) -> None:
    """Write a figure of matplotlib whole, without a date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    dated = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(part, **dated)
    part.replace(path)
