"""Collect systems to compare: the numbers of their runs, from arguments or records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.analysis.statistics import (
    Summary,
    TTest,
    confidence_interval,
    hedges_g,
    holm,
    student_t,
    summarise,
    welch_t,
)
from highrank_plugins.results.doubts import require_comparable, systems_below_floor
from highrank_plugins.results.record import load_record, metric_of, refuse_repeated_runs

TESTS = {"student": student_t, "welch": welch_t}


@dataclass(frozen=True)
class System:
    """Hold a name, and its runs or their mean, deviation and number."""

    name: str
    runs: Summary | list[float]


@dataclass(frozen=True)
class Comparison:
    """Compare a system with the baseline.

    Attributes:
        holm: p adjusted for all systems that are compared.
        difference: mean minus the baseline's, and the ends of its 95 % interval.
        effect: the difference in pooled deviations (Hedges' g).
    """

    system: str
    mean: float
    sd: float
    runs: int
    statistic: float
    p_value: float
    holm: float
    difference: float
    interval: tuple[float, float]
    effect: float


def numbers_of(paths: Sequence[Path], *metrics: str) -> list[tuple[float, ...]]:
    """Return numbers of records; refuse those that do not compare, as `highrank compare` does."""
    records = {path: load_record(path) for path in paths}
    for metric in metrics:
        require_comparable(metric, list(records.items()))
    for name, why in systems_below_floor({str(path): [of] for path, of in records.items()}).items():
        raise ValueError(f"{name}: {why}: the model is below the floor; leave it out")
    return [tuple(metric_of(path, metric) for metric in metrics) for path in paths]


def read_systems(texts: Sequence[str], metric: str | None) -> list[System]:
    """Parse systems, see `read_system`; the records of all of them must compare."""
    systems = [read_system(text, metric) for text in texts]
    words = [word for text in texts for word in text.partition("=")[2].split(",")]
    numbers_of([Path(word) for word in words if word.endswith(".json")], *filter(None, [metric]))
    return systems


def read_system(text: str, metric: str | None) -> System:
    """Parse a system from the command line.

    Args:
        text: NAME=57.1,57.2,… or NAME=MEAN:SD:RUNS or NAME=RECORD.json,….
        metric: the number to read from records.
    """
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise ValueError(
            f"{text}: expected NAME=NUMBER,NUMBER,… or NAME=MEAN:SD:RUNS or NAME=RECORD.json,…"
        )
    words = values.split(",")
    if all(word.endswith(".json") for word in words):
        if metric is None:
            raise ValueError(f"{text}: --metric must name the metric of the records to compare")
        paths = [Path(word) for word in words]
        refuse_repeated_runs(paths, [load_record(path) for path in paths])
        return System(name, [metric_of(path, metric) for path in paths])
    try:
        if ":" in values:
            mean, sd, runs = values.split(":")
            return System(name, Summary(float(mean), float(sd), int(runs)))
        return System(name, [float(word) for word in words])
    except ValueError:
        raise ValueError(
            f"{text}: {values} are not numbers separated by commas, MEAN:SD:RUNS, or a .json file"
        ) from None


def compare(systems: Sequence[System], test: str) -> list[Comparison]:
    """Test every system against the first by two-sided t-tests.

    Args:
        test: "student" or "welch".
    """
    if len(systems) < 2:
        raise ValueError("a t-test needs a baseline and a system")
    baseline, *others = systems
    tests = [_named(system, baseline, test) for system in others]
    adjusted = holm([found.p_value for found in tests])
    control = summarise(baseline.runs)
    compared = []
    for system, found, p in zip(others, tests, adjusted, strict=True):
        of_system = summarise(system.runs)
        compared.append(
            Comparison(
                system.name,
                *of_system,
                *found,
                p,
                of_system.mean - control.mean,
                confidence_interval(of_system, control, test == "student"),
                hedges_g(of_system, control),
            )
        )
    return compared


def _named(system: System, baseline: System, test: str) -> TTest:
    try:
        return TESTS[test](system.runs, baseline.runs)
    except ValueError as error:
        raise ValueError(f"{system.name} against {baseline.name}: {error}") from None
