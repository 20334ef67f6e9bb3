"""Plot measures with matplotlib, which is needed only for plots.

All plots have one style: a colour for each layer, a marker for each variant. Colours are those of
Okabe and Ito, which people with any colour vision tell apart. The background of files is opaque,
so that a figure reads the same on a light and on a dark page.
"""

import importlib.util
import io
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeAlias

from highrank_plugins.common.formatting import Bars, Figure, Scatter
from highrank_plugins.results.comparison import Compared
from highrank_plugins.results.metrics import metric_named

Groups: TypeAlias = dict[str, list[tuple[float, float]]]  # system → (x, y) of each run
COLOURS = {
    "softmax": "#4d4d4d",
    "sigsoftmax": "#56b4e9",
    "gss": "#009e73",
    "plif": "#cc79a7",
    "moc": "#e69f00",
    "mos": "#0072b2",
    "mixtape": "#d55e00",
}
OTHER = "#999999"
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.hashsalt": "highrank_plugins",
}
_MARKERS = "osD^vP*X<>"
MOST_LABELS = 12  # largest number of bars with labels
FORMATS = (".png", ".svg", ".pdf")


def layer_of(system: str) -> str:
    """Return the layer that a system is named after, or its first word."""
    words = re.split(r"[^a-z]+", system.lower())
    return next((word for word in words if word in COLOURS), words[0])


def colour_of(system: str) -> str:
    """Return the colour of a system's layer; grey for others."""
    return COLOURS.get(layer_of(system), OTHER)


def markers_of(systems: Sequence[str]) -> dict[str, str]:
    """Return a marker for each system: one for each variant, the layers' own first."""
    rest = {system: system.lower().replace(layer_of(system), "", 1) for system in systems}
    # option values do not matter
    variants = {name: re.sub(r"[\d.]+", "", text).strip("_-=+. ") for name, text in rest.items()}
    order = sorted({*variants.values()}, key=lambda variant: (variant != "", variant))
    return {name: _MARKERS[order.index(of) % len(_MARKERS)] for name, of in variants.items()}


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


def data_uri(figure: Figure) -> str:
    """Return a figure as the address of an SVG image, which a page holds itself."""
    from matplotlib import rc_context

    text = io.BytesIO()
    with rc_context(STYLE | {"svg.hashsalt": figure.title}):
        drawn = rendered(figure)
        drawn.set_size_inches(5, 3.2)
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{b64encode(text.getvalue()).decode()}"


def draw(path: Path, *figures: Figure) -> None:
    """Write figures into a file, side by side."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        save(rendered(*figures), path)


def rendered(*figures: Figure) -> Any:
    """Return figures side by side as one of matplotlib's; curves have the colours of layers."""
    from matplotlib.figure import Figure as Drawn  # needs no display

    drawn = Drawn(figsize=(6.5 * len(figures), 4.5), layout="constrained")
    plots = drawn.subplots(1, len(figures), squeeze=False)[0]
    for plot, figure in zip(plots, figures, strict=True):
        draw_figure(plot, figure)
    return drawn


def draw_figure(plot: Any, figure: Figure) -> None:
    """Draw a figure into axes of matplotlib."""
    plot.set_title(_literal(figure.title))
    plot.set_xlabel(_literal(figure.axes[0]))
    plot.set_ylabel(_literal(figure.axes[1]))
    if figure.scale in ("logx", "loglog"):
        plot.set_xscale("log")
    if figure.scale in ("log", "loglog"):
        plot.set_yscale("log")
    if isinstance(figure, Scatter):
        _draw_scatter(plot, figure)
    elif isinstance(figure, Bars):
        _draw_bars(plot, figure)
    else:
        for label, (x, y) in figure.series.items():
            colour, line = COLOURS.get(layer_of(label)), "--" if label in figure.dashed else "-"
            plot.plot(x, _finite(y), line, label=_literal(label), color=colour)
        if len(figure.series) > 1:
            plot.legend()
    if not isinstance(figure, Scatter):
        plot.set_ylim(*figure.ends)
    for side in (plot.xaxis, plot.yaxis):
        if side.get_scale() == "log":
            _number_log_axis(side)


def _draw_bars(plot: Any, figure: Bars) -> None:
    """Draw the bars of several groups side by side, and the levels across them."""
    width = 0.8 / len(figure.groups)
    for number, (name, heights) in enumerate(figure.groups.items()):
        middle = (number - (len(figure.groups) - 1) / 2) * width
        places = [place + middle for place in range(len(heights))]
        plot.bar(places, _finite(list(heights.values())), width, label=_literal(name) or None)
        shown = range(0, len(heights), -(-len(heights) // MOST_LABELS))
        labels = [_literal(list(heights)[place]) for place in shown]
        plot.set_xticks(shown, labels)
        plot.tick_params("x", rotation=30 if sum(map(len, labels)) > 40 else 0)
    for label, y in figure.levels.items():
        plot.axhline(y, color="#333333", linestyle="--", linewidth=1, label=_literal(label))
    if len(figure.groups) > 1 or figure.levels:
        plot.legend()


def _draw_scatter(plot: Any, figure: Scatter) -> None:
    """Draw runs faintly, and their mean with the deviations of both axes; the legend is beside."""
    markers = markers_of(list(figure.groups))
    connected = {name for names in figure.connected for name in names}
    heights = {_literal(name): y for name, y in figure.levels.items()}  # by label
    for name, runs in figure.groups.items():
        colour, marker = colour_of(name), markers[name]
        x, y = _middle(runs)
        xs, ys = zip(*runs, strict=True)
        if len(runs) > 1:
            plot.plot(xs, ys, marker, color=colour, alpha=0.3, markersize=4, linestyle="none")
        plot.errorbar(
            x, y, xerr=stdev(xs) if len(runs) > 1 else None,
            yerr=stdev(ys) if len(runs) > 1 else None, fmt=marker, color=colour, capsize=3,
            markersize=7, elinewidth=1, label=None if name in connected else _literal(name),
        )  # fmt: skip
        heights[_literal(name)] = y
    for names in figure.connected:
        xs, ys = zip(*(_middle(figure.groups[name]) for name in names), strict=True)
        layer = layer_of(names[0])
        plot.plot(xs, ys, "-", color=colour_of(names[0]), linewidth=1, zorder=1, label=layer)
        heights[layer] = ys[-1]
    for name, y in figure.levels.items():
        plot.axhline(
            y, color=colour_of(name), linestyle="--", linewidth=1, zorder=1, label=_literal(name)
        )
    whole = all(float(x).is_integer() for runs in figure.groups.values() for x, _ in runs)
    if whole and plot.get_xscale() == "linear":
        plot.xaxis.get_major_locator().set_params(integer=True)  # no half component
    named = dict(zip(*reversed(plot.get_legend_handles_labels()), strict=True))
    order = sorted(heights.keys() & named.keys(), key=lambda name: (-heights[name], name))
    place = {"loc": "upper left", "bbox_to_anchor": (1, 1), "borderaxespad": 0}
    plot.legend([named[name] for name in order], order, **place)


def _number_log_axis(axis: Any) -> None:
    """Write numbers such as 200 and 3,000 at a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if low > 0 and high / low < 300 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _literal(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter; two dollars would begin a formula."""
    return text.replace("$", r"\$")


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


def study_figures(compared: Compared, x: str | None) -> list[Scatter]:
    """Return a figure of the tested metric over `x`; over an option, also one of the rank."""
    runs = [run for system in compared.systems for run in system.runs]
    if x is None:
        known = any(run.cost("parameters") is not None for run in runs)
        x = "parameters" if known else "words_per_second"
    is_option = not any(x in run.record[of] for run in runs for of in ("metrics", "train"))
    metrics = {compared.metric: None}
    if is_option and any(run.number("test_rank") is not None for run in runs):
        metrics = {"test_rank": None} | metrics
    figures = []
    for metric in metrics:
        groups: Groups = {}
        for system in compared.systems:
            pairs = [(run.number(x), run.record["metrics"].get(metric)) for run in system.runs]
            if found := [(a, b) for a, b in pairs if a is not None and b is not None]:
                groups[system.name] = found
        if not groups:
            raise ValueError(
                f"--x {x}: no record has it; name parameters, words_per_second, a metric or an "
                "option of train that the records have"
            )
        more = _layers(compared, groups, metric) if is_option else {}
        figures.append(scatter(groups, x, metric, **more))
    return figures


def scatter(groups: Mapping[str, Sequence[Any]], x: str, y: str, **more: Any) -> Scatter:
    """Return two numbers of runs by system; ranks and parameters span magnitudes."""
    of = metric_named(x), metric_named(y)
    scale = {(1, 1): "loglog", (1, 0): "logx", (0, 1): "log"}.get((of[0].is_wide, of[1].is_wide))
    better = {1: " (higher is better)", -1: " (lower is better)"}.get(of[1].better, "")
    axes = (of[0].label, of[1].label + better)
    return Scatter(groups, f"{of[1].label} over {of[0].label}", axes, scale or "linear", **more)


def _layers(compared: Compared, groups: Groups, metric: str) -> dict[str, Any]:
    """Return what a figure over an option shows: a line for each layer, the baseline's level."""
    layers: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda name: groups[name][0][0]):
        layers.setdefault(layer_of(name), []).append(name)
    return {
        "connected": [names for names in layers.values() if len(names) > 1],
        "levels": {  # the baseline may lack the option, as a softmax lacks components
            system.name: mean(values)
            for system in compared.systems
            if system.name == compared.baseline not in groups and (values := system.values(metric))
        },
    }
