"""Read the records of a table or a plot: the runs of each system, metrics and numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results import doubts
from highrank_plugins.results.doubts import Record
from highrank_plugins.results.metrics import SCORES
from highrank_plugins.results.record import DERIVED, PROBLEMS, RESULTS, load_record

_LABELS = {"seeds": None, "config": None, "command": None}  # what a copy may call itself


@dataclass(frozen=True)
class RecordedRun:
    path: Path
    record: Record

    @property
    def seed(self) -> int:
        """Return the seed, or 1, which is fairseq's default."""
        return int((self.record.get("seeds") or [1])[0])

    def cost(self, name: str) -> float | None:
        value = self.record["train"].get(name)
        return None if value is None else float(value)


def unknown_metric(name: str, known: Iterable[str]) -> str:
    """Return a metric that is not known, with the near ones and all that are; "" if it is."""
    there = list(known)
    near = did_you_mean(name, there)
    return "" if name in there else f"metric {name!r}{near}; there are: {', '.join(there)}"


def metrics_of(records: Sequence[Record]) -> list[str]:
    """Return the metrics with a column that any of the records has, in their order."""
    return [one.name for one in SCORES if any(one.name in record["metrics"] for record in records)]


def numbers_of(paths: Sequence[Path], *metrics: str) -> list[tuple[float, ...]]:
    """Return numbers of records; refuse those that do not compare, as `highrank compare` does."""
    records = {path: load_record(path) for path in paths}
    for metric in metrics:
        doubts.require_comparable(metric, list(records.items()))
    for name, why in doubts.systems_below_floor(
        {str(path): [of] for path, of in records.items()}
    ).items():
        raise ValueError(f"{name}: {why}: the model is below the floor; leave it out")
    for path, record in records.items():
        for metric in metrics:
            if unknown := unknown_metric(metric, record["metrics"]):
                raise ValueError(f"{path} has no {unknown}")
    return [tuple(float(records[path]["metrics"][of]) for of in metrics) for path in paths]


def read_records(
    paths: Sequence[Path], run: Sequence[str] = ("config", "seeds")
) -> list[dict[str, Any]]:
    """Return the complete records of different runs: no two agree in all keys of `run`."""
    records = [load_record(path, complete=True) for path in paths]
    for (first, other), (path, record) in combinations(zip(paths, records, strict=True), 2):
        both = f"{path} and {first}"
        if "wall_seconds" in record["train"] and record | _LABELS == other | _LABELS:
            raise ValueError(
                f"{both} have the same numbers, even of time: one is a copy; leave it out"
            )
        same = "config" in record and all(record.get(key) == other.get(key) for key in run)
        if same or path == first:
            raise ValueError(
                f"{both} are of one configuration and seed; a run counts once: leave one out"
            )
    return records


def read_mapping(file: Path, kind: type = object, damaged: str = DERIVED) -> dict[str, Any]:
    """Return the mapping in a file of a study's folder; its values are of one kind."""
    found = read_json(file)
    if not (isinstance(found, dict) and all(isinstance(one, kind) for one in found.values())):
        raise ValueError(f"{file}: {damaged}")
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


def systems_of(paths: Sequence[Path], records: Sequence[Record]) -> dict[str, list[RecordedRun]]:
    """Return the runs of each system, after which a record's file or folder is named."""
    systems: dict[str, list[RecordedRun]] = {}
    stems = [path.stem for path in paths]
    for path, record in zip(paths, records, strict=True):
        in_folder = path.name == RESULTS
        name = path.absolute().parent.name if in_folder else path.stem
        match = re.fullmatch(r"(.+)-\d+", name)
        if not match and not in_folder:
            raise ValueError(
                f"{path}: expected a file named SYSTEM-SEED.json or {RESULTS}; rename it"
            )
        if not in_folder and stems.count(name) > 1:
            raise ValueError(f"{path}: another file is also called {name}; each seed counts once")
        run, system = RecordedRun(path, record), match[1] if match else name
        for other in systems.setdefault(system, []):
            if other.seed == run.seed and other.record.get("seeds") and record.get("seeds"):
                raise ValueError(
                    f"{path} and {other.path} are runs of {system} with seed {run.seed}; "
                    "each seed counts once: leave one out, or name one after another system"
                )
        systems[system].append(run)
    return systems


def require_scores(metric: str, systems: Mapping[str, Sequence[RecordedRun]]) -> None:
    """Refuse systems of which some runs have a metric and others lack it."""
    for name, runs in systems.items():
        without = [run.path for run in runs if run.record["metrics"].get(metric) is None]
        if 0 < len(without) < len(runs):
            raise ValueError(
                f"{without[0]}: no {metric}, which other runs of {name} have; evaluate it, or "
                "leave it out and say so: a seed that has no score has none by chance"
            )
