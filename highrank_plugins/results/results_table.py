"""Choose the metrics and the numbers of records that a table or a plot shows."""

from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.results.doubts import Record, require_comparable, systems_below_floor
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.record import load_record, metric_of


def metrics_of(records: Sequence[Record]) -> list[str]:
    """Return the metrics with a column that any of the records has, in their order."""
    return [one.name for one in SCORES if any(one.name in record["metrics"] for record in records)]


def numbers_of(paths: Sequence[Path], *metrics: str) -> list[tuple[float, ...]]:
    """Return numbers of records; refuse those that do not compare, as `highrank compare` does."""
    records = {path: load_record(path) for path in paths}
    for metric in metrics:
        require_comparable(metric, list(records.items()))
    for name, why in systems_below_floor({str(path): [of] for path, of in records.items()}).items():
        raise ValueError(f"{name}: {why}: the model is below the floor; leave it out")
    return [tuple(metric_of(path, metric) for metric in metrics) for path in paths]
