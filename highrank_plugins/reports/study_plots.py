"""Draw comparisons of systems: quality over a cost or a measure, and over an option."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from highrank_plugins.common.formatting import Scatter
from highrank_plugins.common.names import distinct_names
from highrank_plugins.reports.style import layer_of
from highrank_plugins.results.comparison import Compared, ComparedSystem, RecordedRun
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.results_table import numbers_of


def study_figures(compared: Compared, x: str) -> list[Scatter]:
    """Return a figure of the tested metric over `x`; over an option, also one of the rank."""
    y = compared.metric
    if metric_named(x).more:
        return [_scatter(compared, x, y, lambda run: run.cost(x), frontier=True)]
    if any(system.values(x) for system in compared.systems):
        return [_scatter(compared, x, y, _metric(x))]
    figures = [_over_option(compared, x, y)]
    if any(system.values("test_rank") for system in compared.systems) and y != "test_rank":
        figures.insert(0, _over_option(compared, x, "test_rank"))
    return figures


Number = Callable[[RecordedRun], float | None]


def _metric(name: str) -> Number:
    return lambda run: run.record["metrics"].get(name)


def _option(name: str) -> Number:
    def found(run: RecordedRun) -> float | None:
        value = run.record.get("config", {}).get("train", {}).get(name)
        return float(value) if isinstance(value, (int, float)) else None

    return found


def _groups(
    systems: Sequence[ComparedSystem], x: Number, y: Number
) -> dict[str, list[tuple[float, float]]]:
    groups = {}
    for system in systems:
        pairs = ((x(run), y(run)) for run in system.runs)
        found = [(a, b) for a, b in pairs if a is not None and b is not None]
        if found:
            groups[system.name] = found
    return groups


def _scatter(compared: Compared, x: str, y: str, number: Number, frontier: bool = False) -> Scatter:
    groups = _groups(compared.systems, number, _metric(y))
    if not groups:
        raise ValueError(f"no record has both {x} and {y}")
    return Scatter(
        groups,
        *_axes(x, y),
        labelled=list(groups),
        frontier=_frontier(groups, metric_named(x).more, metric_named(y).better)
        if frontier
        else (),
    )


def _frontier(groups: dict[str, list[tuple[float, float]]], cheaper: int, better: int) -> list[str]:
    """Return the systems that no other one beats in both cost and quality, the cheapest first."""
    if better == 0 or len(groups) < 2:
        return []
    means = {
        name: tuple(sum(values) / len(values) for values in zip(*runs, strict=True))
        for name, runs in groups.items()
    }
    order = sorted(means, key=lambda name: (-cheaper * means[name][0], -better * means[name][1]))
    best: list[str] = []
    for name in order:
        if not best or better * (means[name][1] - means[best[-1]][1]) > 0:
            best.append(name)
    return best


def correlation_figure(records: Sequence[Path], x: str, y: str) -> Scatter:
    """Return two metrics of runs, grouped by system."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for name, at in zip(distinct_names(records, RESULTS), numbers_of(records, x, y), strict=True):
        groups.setdefault(re.sub(r"-\d+$", "", name), []).append((at[0], at[1]))
    return Scatter(groups, *_axes(x, y), labelled=list(groups))


def _axes(x: str, y: str) -> tuple[str, tuple[str, str], str]:
    """Return title, names of the axes, and the scale: ranks and parameters span magnitudes."""
    of = metric_named(x), metric_named(y)
    scale = {(1, 1): "loglog", (1, 0): "logx", (0, 1): "log"}.get((of[0].is_wide, of[1].is_wide))
    return f"{of[1].label} over {of[0].label}", (of[0].label, of[1].label), scale or "linear"


def _over_option(compared: Compared, x: str, y: str) -> Scatter:
    groups = _groups(compared.systems, _option(x), _metric(y))
    if not groups:
        raise ValueError(
            f"--x {x}: expected words_per_second, parameters, a metric or an option of train"
        )
    levels = {  # the baseline may lack the option, as a softmax lacks components
        system.name: mean(values)
        for system in compared.systems
        if system.name == compared.baseline not in groups and (values := system.values(y))
    }
    layers: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda name: groups[name][0][0]):
        layers.setdefault(layer_of(name), []).append(name)
    return Scatter(
        groups,
        *_axes(x, y),
        labelled=[name for names in layers.values() if len(names) == 1 for name in names],
        connected=[names for names in layers.values() if len(names) > 1],
        levels=levels,
    )
