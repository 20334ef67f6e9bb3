"""Correlate rank and perplexity over the constants of GSS (Parthiban et al. 2021)."""

from pathlib import Path
from typing import Annotated

from highrank_plugins.analysis.statistics import pearson
from highrank_plugins.cli.options import report
from highrank_plugins.reports import plots
from highrank_plugins.results.record import load_record
from highrank_plugins.results.results_table import numbers_of

NUMBERS = {"rank": "Press rank", "perplexity": "perplexity"}


def gss_grid(
    records: Annotated[list[Path], "Records of models, each trained with its own c and k."],
    output: Annotated[Path | None, "JSON file to write the result to."] = None,
    plot: Annotated[Path | None, "Draw into FILE.png, .svg or .pdf."] = None,
) -> None:
    """Correlate rank and perplexity over c and k of GSS.

    Example: python -m recipes.synthetic gss-grid runs/*.json --plot grid.png

    Takes records of models, each trained with its own c and k (Parthiban et al. 2021).
    """
    plots.check_plot(plot)
    points = [_c_and_k(path) for path in records]
    for path, point in zip(records, points, strict=True):
        if points.count(point) > 1:
            raise ValueError(f"{path}: another record has its c and k, too; give one of each")
    found = numbers_of(records, *(f"test_{name}" for name in NUMBERS))
    for point, own in zip(points, found, strict=True):
        point |= zip(NUMBERS, own, strict=True)
    columns = [[point[name] for point in points] for name in NUMBERS]
    varies = len(points) > 2 and all(len({*column}) > 1 for column in columns)
    report({"points": points, "correlation": pearson(*columns) if varies else None}, output)
    if plot is not None:
        maps = {
            title: {(point["c"], point["k"]): point[name] for point in points}
            for name, title in NUMBERS.items()
        }
        _draw(plot, maps)


def _draw(path: Path, maps: dict[str, dict[tuple[float, float], float]]) -> None:
    """Draw maps side by side, each by title: (c, k) → value."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(maps), 4), layout="constrained")
    drawn = figure.subplots(1, len(maps), squeeze=False)[0]
    for plot, (title, cells) in zip(drawn, maps.items(), strict=True):
        xs, ys = (sorted(set(of)) for of in zip(*cells, strict=True))
        table = [[cells.get((x, y), float("nan")) for x in xs] for y in ys]
        image = plot.imshow(table, origin="lower", aspect="auto")
        plot.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
        plot.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
        plot.set(title=title, xlabel="c", ylabel="k")
        figure.colorbar(image, ax=plot)
    plots.save(figure, path)


def _c_and_k(record: Path) -> dict[str, float]:
    """Return the constants of GSS in the configuration of a record."""
    train = load_record(record).get("config", {}).get("train", {})
    try:
        return {name: float(train[f"head_gss_{name}"]) for name in ("c", "k")}
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{record}: its configuration has no train.head_gss_c and train.head_gss_k; a grid "
            "needs models that were trained with --head-gss-c and --head-gss-k"
        ) from None
