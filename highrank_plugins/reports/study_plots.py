"""Draw comparisons of systems: quality over a cost or a measure, and over an option."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

from highrank_plugins.common.formatting import Scatter
from highrank_plugins.common.names import distinct_names
from highrank_plugins.reports.style import layer_of
from highrank_plugins.results.comparison import Compared, RecordedRun
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import RESULTS
from highrank_plugins.results.results_table import numbers_of

Groups: TypeAlias = dict[str, list[tuple[float, float]]]  # system → (x, y) of each run


def study_figures(compared: Compared, x: str) -> list[Scatter]:
    """Return a figure of the tested metric over `x`; over an option, also one of the rank."""
    is_cost = metric_named(x).more != 0
    is_metric = any(system.values(x) for system in compared.systems)

    def number(run: RecordedRun) -> float | None:
        option = run.record.get("config", {}).get("train", {}).get(x)
        if is_cost or is_metric:
            return run.cost(x) if is_cost else run.record["metrics"].get(x)
        return float(option) if isinstance(option, (int, float)) else None

    metrics = [compared.metric]
    ranks = any(system.values("test_rank") for system in compared.systems)
    if ranks and not (is_cost or is_metric or compared.metric == "test_rank"):
        metrics.insert(0, "test_rank")
    figures = []
    for metric in metrics:
        groups = {}
        for system in compared.systems:
            pairs = ((number(run), run.record["metrics"].get(metric)) for run in system.runs)
            if found := [(a, b) for a, b in pairs if a is not None and b is not None]:
                groups[system.name] = found
        more: dict[str, Any] = {"labelled": list(groups)}
        if not groups:
            if is_cost or is_metric:
                raise ValueError(f"no record has both {x} and {metric}")
            raise ValueError(
                f"--x {x}: expected words_per_second, parameters, a metric or an option of train"
            )
        if is_cost:
            more["frontier"] = _frontier(groups, metric_named(x).more, metric_named(metric).better)
        elif not is_metric:
            more = _layers(compared, groups, metric)
        figures.append(Scatter(groups, *_axes(x, metric), **more))
    return figures


def _frontier(groups: Groups, cheaper: int, better: int) -> list[str]:
    """Return the systems that no other one beats in both cost and quality, the cheapest first."""
    if better == 0 or len(groups) < 2:
        return []
    means = {name: [mean(of) for of in zip(*runs, strict=True)] for name, runs in groups.items()}
    best: list[str] = []
    for name in sorted(
        means, key=lambda name: (-cheaper * means[name][0], -better * means[name][1])
    ):
        if not best or better * (means[name][1] - means[best[-1]][1]) > 0:
            best.append(name)
    return best


def correlation_figure(records: Sequence[Path], x: str, y: str) -> Scatter:
    """Return two metrics of runs, grouped by system."""
    groups: Groups = {}
    for name, at in zip(distinct_names(records, RESULTS), numbers_of(records, x, y), strict=True):
        groups.setdefault(re.sub(r"-\d+$", "", name), []).append((at[0], at[1]))
    return Scatter(groups, *_axes(x, y), labelled=list(groups))


def _axes(x: str, y: str) -> tuple[str, tuple[str, str], str]:
    """Return title, names of the axes, and the scale: ranks and parameters span magnitudes."""
    of = metric_named(x), metric_named(y)
    scale = {(1, 1): "loglog", (1, 0): "logx", (0, 1): "log"}.get((of[0].is_wide, of[1].is_wide))
    return f"{of[1].label} over {of[0].label}", (of[0].label, of[1].label), scale or "linear"


def _layers(compared: Compared, groups: Groups, metric: str) -> dict[str, Any]:
    """Return what a figure over an option shows: a line for each layer, the baseline's level."""
    layers: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda name: groups[name][0][0]):
        layers.setdefault(layer_of(name), []).append(name)
    return {
        "labelled": [name for names in layers.values() if len(names) == 1 for name in names],
        "connected": [names for names in layers.values() if len(names) > 1],
        "levels": {  # the baseline may lack the option, as a softmax lacks components
            system.name: mean(values)
            for system in compared.systems
            if system.name == compared.baseline not in groups and (values := system.values(metric))
        },
    }
