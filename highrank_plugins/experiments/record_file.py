"""Reading the record of a run."""

import json
from pathlib import Path
from typing import Any

from highrank_plugins.experiments.nearest import did_you_mean


def load_record(path: Path) -> dict[str, Any]:
    """A JSON object with `metrics`, as `highrank record` and the evaluations write it.

    Raises:
        ValueError: another file. OSError: none.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record["metrics"], dict):
            return dict(record)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: no record of a run, which has metrics")


def metric_of(path: Path, metric: str) -> float:
    """A number of a record.

    Raises:
        ValueError: it has no such number; names those it has. OSError.
    """
    metrics = load_record(path)["metrics"]
    if not isinstance(metrics.get(metric), (int, float)):
        near = did_you_mean(metric, list(metrics))
        raise ValueError(f"{path}: no {metric} among {', '.join(metrics)}{near}")
    return float(metrics[metric])
