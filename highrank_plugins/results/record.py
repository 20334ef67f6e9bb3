"""Write the JSON record of one run: its configuration, machine and results."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.files import read_json, require_regular
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.provenance import git_state, hardware, versions

if TYPE_CHECKING:
    from highrank_plugins.common.score import Score
    from highrank_plugins.training.configuration import Configuration
    from highrank_plugins.training.training_log import LoggedTraining

RESULTS = "results.json"  # file name of a recipe's record
PROBLEMS = "problems.json"  # in a study's folder: why members have no record
DIVERGED = "diverged (NaN)"  # one of these reasons


def make_record(
    scores: dict[str, "Score"],
    configuration: "Configuration",
    training: "LoggedTraining",
    finetuning: "LoggedTraining | None" = None,
    *,
    paired: Mapping[str, Any] | None = None,
    data: str | None = None,
    ledger: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return everything needed to judge and repeat a result, as plain values.

    Args:
        scores: the signature of the first, the score to report, becomes `signature`.
        finetuning: a second training run, which continued the first.
        paired: the test against another system, see `scoring.compare`.
        data: digest of the text, equal for equal text and preparation.
        ledger: sentences and tokens of each stage, see `ledger.read_ledger`.
    """
    more: dict[str, Any] = {} if data is None else {"data": data}
    if finetuning is not None:
        more["finetune"] = {"command": finetuning.command, "train": finetuning.summary}
    if ledger:
        more["ledger"] = ledger
    if paired is not None:
        more["paired"] = paired
    return {
        "metrics": {name: score.value for name, score in scores.items()},
        "signature": next(iter(scores.values())).signature,
        "signatures": {name: score.signature for name, score in scores.items()},
        "config": configuration.blocks(),
        "seeds": [configuration.train.get("seed", 1)],  # 1 is fairseq's default
        "command": training.command,
        "train": training.summary,
        **more,
        "versions": versions(),
        "git": git_state(),
        "hardware": hardware(),
    }


def load_record(path: Path) -> dict[str, Any]:
    """Load a JSON object with `metrics`, as `results record` and the evaluations write it.

    Raises:
        ValueError: not a record, or a metric is NaN or infinite. OSError.
    """
    require_regular(path)
    try:
        record = dict(read_json(path))
        bad = [name for name, value in record["metrics"].items() if not math.isfinite(value)]
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{path}: not a record of a run: its metrics are missing, or are not numbers"
        ) from None
    if bad:
        raise ValueError(f"{path}: {bad[0]} is not a number; leave it out or repeat the run")
    return record


def configuration_of(record: Mapping[str, Any]) -> str:
    """Return the configuration without the seed, as text; empty if the record has none."""
    blocks = {name: dict(options or {}) for name, options in record.get("config", {}).items()}
    blocks.get("train", {}).pop("seed", None)
    return json.dumps(blocks, sort_keys=True) if any(blocks.values()) else ""


def refuse_repeated_runs(
    paths: Sequence[Path],
    records: Sequence[Mapping[str, Any]],
    run: Sequence[str] = ("config", "seeds"),
) -> None:
    """Check that records are of different runs.

    Args:
        run: keys that identify a run; no two records may agree in all of them.
    Raises:
        ValueError: two records belong to one run; the message names them.
    """
    for index, record in enumerate(records):
        for path, other in zip(paths[:index], records[:index], strict=True):
            same = "config" in record and all(record.get(key) == other.get(key) for key in run)
            if same or path == paths[index]:
                raise ValueError(
                    f"{paths[index]} and {path} are of one configuration and seed; a run counts "
                    "once: leave one out"
                )


def study_problems(paths: Sequence[Path]) -> dict[str, str]:
    """Return why other runs of the studies that these records belong to have no record.

    Runs of systems that have records, none of which is among these, are left out.

    Args:
        paths: `SYSTEM-SEED/results.json`; those outside of a study's folder tell nothing.
    Returns:
        SYSTEM-SEED → reason.
    Raises:
        ValueError: a study's problems.json is damaged. OSError.
    """
    found: dict[str, str] = {}
    for folder in dict.fromkeys(path.parent.parent for path in paths if path.name == RESULTS):
        file = folder / PROBLEMS
        if file.is_file():
            problems = read_json(file)
            if not isinstance(problems, dict):
                raise ValueError(f"{file}: not an object; run the study with --table to write it")
            given = {_system(path) for path in paths if path.parent.parent == folder}
            left_out = {_system(path) for path in folder.glob(f"*/{RESULTS}")} - given
            found |= {
                str(name): str(reason)
                for name, reason in problems.items()
                if name.rpartition("-")[0] not in left_out
            }
    return found


def _system(record: Path) -> str:
    """Return the system of `SYSTEM-SEED/results.json`."""
    return record.parent.name.rpartition("-")[0]


def metric_of(path: Path, metric: str) -> float:
    """Return a number of a record.

    Raises:
        ValueError: the number is missing; the message lists the others. OSError.
    """
    metrics = load_record(path)["metrics"]
    if not isinstance(metrics.get(metric), (int, float)):
        near = did_you_mean(metric, list(metrics))
        raise ValueError(f"{path} has no {metric}{near}; it has {', '.join(metrics)}")
    return float(metrics[metric])
