"""Plot measures by matplotlib, which is needed only for plots."""

import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import escape

from highrank_plugins.common.figures import Bars, Figure, Lines

# colours that nothing else has, which become those of a page
_PAGE_COLOURS = {
    "#010203": "--ink", "#010204": "--dim", "#010205": "--line",
    "#010206": "--c0", "#010207": "--c1", "#010208": "--c2",
}  # fmt: skip
_COLOUR_OF = {variable: colour for colour, variable in _PAGE_COLOURS.items()}
_SVG_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "text.color": _COLOUR_OF["--ink"],
    "axes.edgecolor": _COLOUR_OF["--line"],
    "axes.labelcolor": _COLOUR_OF["--dim"],
    "xtick.color": _COLOUR_OF["--dim"],
    "ytick.color": _COLOUR_OF["--dim"],
    "legend.framealpha": 0,
}
_SVG_CYCLE = [_COLOUR_OF[name] for name in ("--c0", "--c1", "--c2")]
MOST_LABELS = 12  # below bars
FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path | None) -> None:
    """Refuse a plot that cannot be drawn, before anything is computed.

    Raises:
        ValueError: another format; matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the name must end with {', '.join(FORMATS)}")
    if not is_available():
        raise ValueError(
            "--plot needs matplotlib, which is not installed: pip install "
            "'highrank_plugins[plot]', or leave --plot out"
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
    found = _for_a_page(text.getvalue())
    for colour, variable in _PAGE_COLOURS.items():
        found = found.replace(colour, f"var({variable})")
    names = figure.series if isinstance(figure, Lines) else filter(None, figure.groups)
    said = f"{figure.title}; {figure.axes[1]} over {figure.axes[0]}: {', '.join(names)}"
    return found.replace("<svg ", f'<svg role="img" aria-label="{escape(said)}" ', 1)


def _for_a_page(text: str) -> str:
    """Return an SVG file as an element of a page: without ids that another figure has, too."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)


def draw(path: Path, figure: Figure) -> None:
    """Write a figure into a file."""
    _save(rendered(figure), path)


def rendered(figure: Figure) -> Any:
    """Return a figure as matplotlib's."""
    drawn, plot = _figure(figure.title)
    if isinstance(figure, Lines):
        for label, (x, y) in figure.series.items():
            plot.plot(x, _finite(y), "--" if label in figure.dashed else "-", label=label)
        several = len(figure.series) > 1
    else:
        _draw_bars(plot, figure)
        several = len(figure.groups) > 1
    _label(plot, figure.axes, figure.scale)
    if several:
        plot.legend()
    return drawn


def _finite(values: Sequence[float]) -> list[float]:
    """Return the values with gaps for those that no axis holds."""
    return [value if math.isfinite(value) else math.nan for value in values]


def _draw_bars(plot: Any, figure: Bars) -> None:
    width = 0.8 / len(figure.groups)
    for number, (name, heights) in enumerate(figure.groups.items()):
        middle = (number - (len(figure.groups) - 1) / 2) * width
        places = [place + middle for place in range(len(heights))]
        plot.bar(places, _finite(list(heights.values())), width, label=name or None)
        shown = range(0, len(heights), -(-len(heights) // MOST_LABELS))
        plot.set_xticks(shown, [list(heights)[place] for place in shown])
    plot.tick_params("x", rotation=30)


def means(
    path: Path, found: Mapping[str, tuple[float, float]], title: str, axes: tuple[str, str]
) -> None:
    """Draw for each label a mean and its deviation, upwards and downwards."""
    figure, plot = _figure(title)
    middle, deviation = zip(*found.values(), strict=True)
    plot.errorbar(list(found), middle, yerr=deviation, fmt="o", capsize=4)
    plot.tick_params("x", rotation=30)
    _label(plot, axes, "linear")
    _save(figure, path)


def points(
    path: Path, at: Mapping[str, tuple[float, float]], title: str, axes: tuple[str, str]
) -> None:
    """Draw a point for each label, with the label next to it."""
    figure, plot = _figure(title)
    x, y = zip(*at.values(), strict=True)
    plot.scatter(x, y)
    for label, place in at.items():
        plot.annotate(label, place, (4, 3), textcoords="offset points", fontsize=7)
    _label(plot, axes, "linear")
    _save(figure, path)


def maps(
    path: Path, values: Mapping[str, Mapping[tuple[float, float], float]], axes: tuple[str, str]
) -> None:
    """Draw maps side by side, each by title: (x, y) → value."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(values), 4), layout="constrained")
    for plot, (title, cells) in zip(
        figure.subplots(1, len(values), squeeze=False)[0], values.items(), strict=True
    ):
        xs, ys = (sorted(set(of)) for of in zip(*cells, strict=True))
        table = [[cells.get((x, y), float("nan")) for x in xs] for y in ys]
        image = plot.imshow(table, origin="lower", aspect="auto")
        plot.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
        plot.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
        plot.set_title(title)
        _label(plot, axes, "linear")
        figure.colorbar(image, ax=plot)
    _save(figure, path)


def _figure(title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # has no window, whatever the machine

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    plot = figure.subplots()
    plot.set_title(title)
    return figure, plot


def _label(plot: Any, axes: tuple[str, str], scale: str) -> None:
    plot.set_xlabel(axes[0])
    plot.set_ylabel(axes[1])
    if scale == "loglog":
        plot.set_xscale("log")
    if scale in ("log", "loglog"):
        plot.set_yscale("log")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    figure.savefig(part)
    part.replace(path)
