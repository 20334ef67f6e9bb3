"""Read the records of a table or a plot, and choose the metrics and numbers that it shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.doubts import Record, require_comparable, systems_below_floor
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.record import PROBLEMS, RESULTS, load_record

DAMAGED = "damaged; restore it, or run the study in another --exp-dir"
_LABELS = {"seeds": None, "config": None, "command": None}  # what a copy may call itself


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
    for path, record in records.items():
        for metric in metrics:
            if metric not in (found := record["metrics"]):
                near = did_you_mean(metric, list(found))
                raise ValueError(f"{path} has no {metric}{near}; it has {', '.join(found)}")
    return [tuple(float(records[path]["metrics"][of]) for of in metrics) for path in paths]


def read_records(
    paths: Sequence[Path], run: Sequence[str] = ("config", "seeds")
) -> list[dict[str, Any]]:
    """Return the complete records of different runs: no two agree in all keys of `run`."""
    records = [load_record(path, complete=True) for path in paths]
    for index, record in enumerate(records):
        for path, other in zip(paths[:index], records[:index], strict=True):
            same = "config" in record and all(record.get(key) == other.get(key) for key in run)
            if "wall_seconds" in record["train"] and record | _LABELS == other | _LABELS:
                raise ValueError(
                    f"{paths[index]} and {path} have the same numbers, even of time: one is a copy "
                    "of the other; leave it out"
                )
            if same or path == paths[index]:
                raise ValueError(
                    f"{paths[index]} and {path} are of one configuration and seed; a run counts "
                    "once: leave one out"
                )
    return records


def read_mapping(file: Path, kind: type = object) -> dict[str, Any]:
    """Return the mapping in a file of a study's folder; its values are of one kind."""
    found = read_json(file)
    if not (isinstance(found, dict) and all(isinstance(one, kind) for one in found.values())):
        raise ValueError(f"{file}: {DAMAGED}")
    return found


def study_problems(paths: Sequence[Path]) -> dict[str, str]:
    """Return why other runs of the systems in these records' studies have no record."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(path.parent.parent for path in paths if path.name == RESULTS):
        file = folder / PROBLEMS
        if file.is_file():
            problems = read_mapping(file)
            given = [path for path in paths if path.parent.parent == folder]
            known, own = (
                {path.parent.name.rpartition("-")[0] for path in of}  # SYSTEM-SEED/results.json
                for of in (folder.glob(f"*/{RESULTS}"), given)
            )
            found |= {
                str(name): str(reason)
                for name, reason in problems.items()
                if name.rpartition("-")[0] not in known - own
            }
    return found
