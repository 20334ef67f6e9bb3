"""A study of several seeds as a Markdown table: means, deviations, t-tests against a control."""

import re
from pathlib import Path
from statistics import mean, stdev

from highrank_plugins.analysis import student_t
from highrank_plugins.common.markdown import table
from highrank_plugins.results.results_table import (
    Record,
    metrics,
    metrics_of,
    number,
    read_record,
)

CONTROL = "softmax"


def seeds_table(paths: list[Path], tested: str) -> str:
    """One row per system: mean ± sample deviation of every metric over its seeds.

    p is that of Student's unpaired two-sided t-test of `tested` against the system `softmax`.

    Args:
        paths: records, named `<system>-<seed>.json`.
        tested: a metric.
    Raises:
        ValueError: a file that is no record; no record has that metric; another name, or one
            that two files have.
    """
    systems: dict[str, list[Record]] = {}
    for path in paths:
        systems.setdefault(_system(path, paths), []).append(read_record(path))
    shown = metrics_of([record for records in systems.values() for record in records])
    if tested not in shown:
        raise ValueError(f"no record has the metric {tested!r}; there are: {', '.join(shown)}")
    headings = ["system", "seeds", *(metrics()[name].heading for name in shown)]
    headings += [f"p ({metrics()[tested].heading})", "words/s in training"]
    rows = [
        [
            system,
            str(len(records)),
            *(_mean(name, _values(records, name)) for name in shown),
            _p_value(_values(records, tested), _values(systems.get(CONTROL, []), tested), system),
            f"{mean(record['train']['words_per_second'] for record in records):,.0f}",
        ]
        for system, records in systems.items()
    ]
    return table(headings, rows)


def _system(path: Path, paths: list[Path]) -> str:
    match = re.fullmatch(r"(.+)-\d+", path.stem)
    if not match:
        raise ValueError(f"{path}: expected a file named SYSTEM-SEED.json; rename it")
    if [other.stem for other in paths].count(path.stem) > 1:
        raise ValueError(f"{path}: another file is {match[0]} too; a seed counts once")
    return match[1]


def _values(records: list[Record], metric: str) -> list[float]:
    return [record["metrics"][metric] for record in records if metric in record["metrics"]]


def _mean(metric: str, values: list[float]) -> str:
    if len(values) < 2:
        return number(metric, values[0] if values else None)
    return f"{number(metric, mean(values))} ± {number(metric, stdev(values))}"


def _p_value(runs: list[float], control: list[float], system: str) -> str:
    if system == CONTROL or len(runs) < 2 or len(control) < 2:
        return "–"
    return f"{student_t(runs, control).p_value:.2g}"
