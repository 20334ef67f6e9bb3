"""Show a study of several seeds as Markdown: means, deviations, t-tests against a baseline."""

import re
from pathlib import Path
from statistics import mean, stdev

from highrank_plugins.analysis import student_t
from highrank_plugins.common.markdown import table
from highrank_plugins.results.results_table import (
    RESULTS,
    Record,
    metrics,
    metrics_of,
    number,
    read_records,
)


def seeds_table(paths: list[Path], tested: str, baseline: str) -> str:
    """Return a row per system: mean ± sample deviation of every metric over its seeds.

    p is that of Student's unpaired two-sided t-test of `tested` against the baseline.

    Args:
        paths: records, named `SYSTEM-SEED.json`, `SYSTEM-SEED/results.json` or
            `SYSTEM/results.json`.
        tested: a metric.
        baseline: a system; where there is none of that name, no row has a p.
    Raises:
        ValueError: a file that is no record; no record has that metric; another name; a run that
            two files are of.
    """
    records = read_records(paths)
    systems: dict[str, list[Record]] = {}
    for path, record in zip(paths, records, strict=True):
        systems.setdefault(system_of(path, paths), []).append(record)
    shown = metrics_of(records)
    if tested not in shown:
        raise ValueError(f"no record has the metric {tested!r}; there are: {', '.join(shown)}")
    headings = ["system", "seeds", *(metrics()[name].heading for name in shown)]
    headings += [f"p ({metrics()[tested].heading})", "words/s in training"]
    control = _values(systems.get(baseline, []), tested)
    rows = [
        [
            system,
            str(len(of_system)),
            *(_mean(name, _values(of_system, name)) for name in shown),
            "–" if system == baseline else _p_value(_values(of_system, tested), control),
            f"{mean(record['train']['words_per_second'] for record in of_system):,.0f}",
        ]
        for system, of_system in systems.items()
    ]
    return table(headings, rows)


def system_of(path: Path, paths: list[Path]) -> str:
    """Return the system that a record's file or folder is named after.

    Raises:
        ValueError: the file has another form of name; another file has the same.
    """
    folder = path.absolute().parent.name
    name = folder if path.name == RESULTS else path.stem
    match = re.fullmatch(r"(.+)-\d+", name)
    if path.name == RESULTS:
        return match[1] if match else folder
    if not match:
        raise ValueError(f"{path}: expected a file named SYSTEM-SEED.json or {RESULTS}; rename it")
    if [other.stem for other in paths].count(path.stem) > 1:
        raise ValueError(f"{path}: another file is {match[0]} too; a seed counts once")
    return match[1]


def _values(records: list[Record], metric: str) -> list[float]:
    return [record["metrics"][metric] for record in records if metric in record["metrics"]]


def _mean(metric: str, values: list[float]) -> str:
    if len(values) < 2:
        return number(metric, values[0] if values else None)
    return f"{number(metric, mean(values))} ± {number(metric, stdev(values))}"


def _p_value(runs: list[float], control: list[float]) -> str:
    if len(runs) < 2 or len(control) < 2:
        return "–"
    return f"{student_t(runs, control).p_value:.2g}"
