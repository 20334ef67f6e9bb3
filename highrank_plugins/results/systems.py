"""Collect systems to compare: the numbers of their runs, given or from records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.analysis import Summary, TTest, holm, student_t, summarise, welch_t
from highrank_plugins.results.record import metric_of

TESTS = {"student": student_t, "welch": welch_t}


@dataclass(frozen=True)
class System:
    """Hold a name, and its runs or their mean, deviation and number."""

    name: str
    runs: Summary | list[float]


@dataclass(frozen=True)
class Comparison:
    """Compare a system with the baseline; `holm` is p adjusted for all that are compared."""

    system: str
    mean: float
    sd: float
    runs: int
    statistic: float
    p_value: float
    holm: float


def read_system(text: str, metric: str | None) -> System:
    """Read a system as the command line has it.

    Args:
        text: NAME=57.1,57.2,… or NAME=MEAN:SD:RUNS or NAME=RECORD.json,….
        metric: which of the records' numbers.
    Raises:
        ValueError: another form; a record without the metric. OSError: no such record.
    """
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ValueError(
            f"{text}: expected NAME=NUMBER,NUMBER,… or NAME=MEAN:SD:RUNS or NAME=RECORD.json,…"
        )
    words = values.split(",")
    if all(word.endswith(".json") for word in words):
        if metric is None:
            raise ValueError(f"{text}: --metric must say which number of the records is compared")
        return System(name, [metric_of(Path(word), metric) for word in words])
    try:
        if ":" in values:
            mean, sd, runs = values.split(":")
            return System(name, Summary(float(mean), float(sd), int(runs)))
        return System(name, [float(word) for word in words])
    except ValueError:
        raise ValueError(
            f"{text}: {values} are no numbers with commas between, no MEAN:SD:RUNS, and no .json"
        ) from None


def compare(systems: Sequence[System], test: str) -> list[Comparison]:
    """Test every system against the first by two-sided t-tests.

    Args:
        test: "student" or "welch".
    Raises:
        ValueError: fewer than two systems; fewer than two runs of one.
    """
    if len(systems) < 2:
        raise ValueError("a t-test needs a baseline and a system")
    baseline, *others = systems
    tests = [_named(system, baseline, test) for system in others]
    adjusted = holm([found.p_value for found in tests])
    return [
        Comparison(system.name, *summarise(system.runs), *found, p)
        for system, found, p in zip(others, tests, adjusted, strict=True)
    ]


def _named(system: System, baseline: System, test: str) -> TTest:
    try:
        return TESTS[test](system.runs, baseline.runs)
    except ValueError as error:
        raise ValueError(f"{system.name} against {baseline.name}: {error}") from None
