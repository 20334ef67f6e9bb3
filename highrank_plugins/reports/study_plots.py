"""Draw comparisons of systems: quality over a cost or a measure, and over an option."""

from collections.abc import Callable, Sequence
from statistics import mean

from highrank_plugins.common.figures import Scatter
from highrank_plugins.common.score import direction
from highrank_plugins.reports.style import layer_of
from highrank_plugins.results.comparison import Compared, ComparedSystem, RecordedRun
from highrank_plugins.results.results_table import metrics

_AXES = {
    "parameters": "parameters",
    "words_per_second": "speed of training (words/s)",
    "peak_memory_gib": "memory of the training run (GiB)",
    "wall_seconds": "training time (s)",
    "test_perplexity": "test perplexity",
    "valid_perplexity": "validation perplexity",
    "sacrebleu": "sacreBLEU",
    "head_components": "components K",
    "head_frequent_ratio": "share r of words with gates of their own",
    "head_dropout": "dropout on the contexts",
    "test_rank": "rank of the log-probabilities (Press)",
}
# a number of a training run → whether more of it is better
_COSTS = {"parameters": -1, "words_per_second": 1, "peak_memory_gib": -1, "wall_seconds": -1}
_WIDE = ("rank", "parameters")  # parts of names of numbers that span orders of magnitude


def study_figures(compared: Compared, x: str) -> list[Scatter]:
    """Return a figure of the tested metric over `x`; over an option, also one of a measured rank.

    Args:
        x: a number of the training run (such as words_per_second), a metric, or an option of train.
    """
    y = compared.metric
    if x in _COSTS:
        return [_scatter(compared, x, y, _cost(x), frontier=True)]
    if any(system.values(x) for system in compared.systems):
        return [_scatter(compared, x, y, _metric(x))]
    figures = [_over_option(compared, x, y)]
    if any(system.values("test_rank") for system in compared.systems) and y != "test_rank":
        figures.insert(0, _over_option(compared, x, "test_rank"))
    return figures


Number = Callable[[RecordedRun], float | None]


def _cost(name: str) -> Number:
    return lambda run: run.cost(name)


def _metric(name: str) -> Number:
    return lambda run: run.record["metrics"].get(name)


def _option(name: str) -> Number:
    def found(run: RecordedRun) -> float | None:
        value = run.record.get("config", {}).get("train", {}).get(name)
        return float(value) if isinstance(value, (int, float)) else None

    return found


def axis(name: str) -> str:
    """Return the name of an axis, with its unit."""
    if name in _AXES:
        return _AXES[name]
    return metrics()[name].heading if name in metrics() else name.replace("_", " ")


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
        f"{axis(y)} over {axis(x)}",
        (axis(x), axis(y)),
        scale_of(x, y),
        labelled=list(groups),
        frontier=_frontier(groups, _COSTS[x], direction(y)) if frontier else (),
    )


def scale_of(x: str, y: str) -> str:
    """Return the scale of axes: ranks and parameters span orders of magnitude."""
    wide = [any(part in name for part in _WIDE) for name in (x, y)]
    return {(1, 1): "loglog", (1, 0): "logx", (0, 1): "log"}.get((wide[0], wide[1]), "linear")


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
        f"{axis(y)} over {axis(x)}",
        (axis(x), axis(y)),
        scale_of(x, y),
        labelled=[name for names in layers.values() if len(names) == 1 for name in names],
        connected=[names for names in layers.values() if len(names) > 1],
        levels=levels,
    )
