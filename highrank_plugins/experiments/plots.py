"""Plots of measures, by matplotlib, which is needed only if a plot is asked for."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORMATS = (".png", ".svg", ".pdf")
Series = tuple[Sequence[float], Sequence[float]]


def check_plot(path: Path | None) -> None:
    """Before anything is computed: can this plot be drawn?

    Raises:
        ValueError: another format; matplotlib is not installed.
    """
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the name must end with {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib, which is not installed: pip install "
            "'highrank_plugins[plot]', or leave --plot out"
        )


def lines(
    path: Path,
    series: Mapping[str, Series],
    title: str,
    axes: tuple[str, str],
    scale: str = "linear",
) -> None:
    """Curves by label.

    Args:
        axes: what is along x and y.
        scale: "linear", "log" (y), or "loglog".
    """
    figure, plot = _figure(title)
    for label, (x, y) in series.items():
        plot.plot(x, y, label=label)
    _label(plot, axes, scale)
    if len(series) > 1:
        plot.legend()
    _save(figure, path)


def bars(path: Path, values: Mapping[str, float], title: str, axes: tuple[str, str]) -> None:
    """A bar for each label."""
    figure, plot = _figure(title)
    plot.bar(list(values), list(values.values()))
    plot.tick_params("x", rotation=30)
    _label(plot, axes, "linear")
    _save(figure, path)


def means(
    path: Path, found: Mapping[str, tuple[float, float]], title: str, axes: tuple[str, str]
) -> None:
    """For each label a mean and its deviation, upwards and downwards of it."""
    figure, plot = _figure(title)
    middle, deviation = zip(*found.values(), strict=True)
    plot.errorbar(list(found), middle, yerr=deviation, fmt="o", capsize=4)
    plot.tick_params("x", rotation=30)
    _label(plot, axes, "linear")
    _save(figure, path)


def points(
    path: Path, at: Mapping[str, tuple[float, float]], title: str, axes: tuple[str, str]
) -> None:
    """A point for each label, which stands beside it."""
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
    """Maps side by side, each by title: (x, y) → value."""
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
