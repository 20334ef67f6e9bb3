"""Estimate hours and disk space of a study from twenty updates of each system."""

import math
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.results.record import load_record
from highrank_plugins.studies.definition import Study
from highrank_plugins.studies.disk import bytes_in
from highrank_plugins.studies.prepared import PreparedMember
from highrank_plugins.studies.runner import WAIT, Environment, end, in_use, launch, stop_signals
from highrank_plugins.training.training_log import Entry, parse

UPDATES = 20
_PROBES = "probes"
# options of a probe: log every update, and stop early
_SETTINGS = {"max_update": UPDATES, "log_interval": 1}
_SAVED = re.compile(r"checkpoint.*\.pt")


@dataclass(frozen=True)
class MemberCost:
    """Hold the cost of a member.

    Attributes:
        hours: of training alone, without finetuning; None if the recipe has no log of fairseq's.
        bytes: disk space.
    """

    hours: float | None
    bytes: int


def estimate(study: Study, member: PreparedMember, exp_dir: Path, env: Environment) -> MemberCost:
    """Return the cost of a member: measured if its system has a finished one, else probed once."""
    if member.is_done():
        record = load_record(member.record, finite=False)
        seconds = record.get("train", {}).get("wall_seconds")
        hours = None if seconds is None else seconds / 3600
        return MemberCost(hours, bytes_in(member.run_dir))
    run_dir = _probe_dir(study, member, exp_dir)
    kept = _kept_cost(run_dir)
    if kept is not None:
        return kept
    found = _probe(member, env, run_dir)
    write_json(run_dir.with_suffix(".json"), asdict(found))
    shutil.rmtree(run_dir)
    return found


def probed_bytes(study: Study, members: Iterable[PreparedMember], exp_dir: Path) -> dict[str, int]:
    """Return system → bytes of a member, from the probes of earlier dry runs."""
    return {
        member.member.system: kept.bytes
        for member in members
        if (kept := _kept_cost(_probe_dir(study, member, exp_dir)))
    }


def _kept_cost(run_dir: Path) -> MemberCost | None:
    """Return what an earlier probe measured; None without one, and if its file is damaged."""
    file = run_dir.with_suffix(".json")
    try:
        return MemberCost(**read_json(file)) if file.is_file() else None
    except (ValueError, TypeError):
        return None


def _probe_dir(study: Study, member: PreparedMember, exp_dir: Path) -> Path:
    return exp_dir / study.recipe.name / _PROBES / member.key


def _probe(member: PreparedMember, env: Environment, run_dir: Path) -> MemberCost:
    words = list(member.command)
    words[words.index("--name") + 1] = f"{_PROBES}/{member.key}"
    words += [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    log = run_dir.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with stop_signals():
        while in_use(run_dir):  # by the probe of a dry run that was killed
            time.sleep(WAIT)
        process = launch([*words, "--stop-stage", "3"], log, env)
        try:
            code = process.wait()
        finally:
            if process.returncode is None:
                end([process])
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        raise ValueError(
            f"{member.name}: the probe failed with exit code {code}; log: {log}: {' '.join(tail)}"
        )
    train = run_dir / "train"
    log_file = train / "train.log"
    lines = log_file.read_text(encoding="utf-8").splitlines() if log_file.is_file() else []
    entries = [entry for entry in map(parse, lines) if entry and entry.kind == "train_inner"]
    options = member.settings.train
    per_epoch = _updates_per_epoch(entries)
    updates = min(
        float(options.get("max_update", 0)) or float("inf"),
        (float(options.get("max_epoch", 0)) or float("inf")) * per_epoch,
    )
    saved = _checkpoints(options, updates, updates / per_epoch)
    if member.settings.finetune:  # a second training run with its own
        saved *= 2
    return MemberCost(_hours(entries, updates), _bytes(run_dir, train, saved))


def _updates_per_epoch(entries: Sequence[Entry]) -> float:
    """Return the updates of an epoch; infinite if the log of the first ones does not say."""
    if not entries:
        return float("inf")
    epochs = entries[-1].number("update")  # 0.25 after a quarter of the first epoch
    return entries[-1].number("num_updates") / epochs if epochs > 0 else float("inf")


def _hours(entries: Sequence[Entry], updates: float) -> float | None:
    """Return the hours of a whole training run from the log of its first updates.

    The first half of the updates, which loads and compiles, does not count. Validations do not
    count either.
    """
    speeds = [entry.number("ups") for entry in entries[len(entries) // 2 :]]
    if not speeds or not min(speeds) > 0 or updates == float("inf"):
        return None
    return updates * sum(1 / speed for speed in speeds) / len(speeds) / 3600


def _checkpoints(options: dict[str, Any], updates: float, epochs: float) -> int:
    """Return how many checkpoints a whole run leaves: the best, the last, one more, kept ones."""
    kept = 3
    if not options.get("no_epoch_checkpoints"):
        kept += _kept(options, "keep_last_epochs", epochs / int(options.get("save_interval", 1)))
    every = int(options.get("save_interval_updates", 0))
    if every > 0:
        kept += _kept(options, "keep_interval_updates", updates / every)
    return kept


def _kept(options: dict[str, Any], name: str, written: float) -> int:
    """Return how many of the written checkpoints stay; fairseq keeps all without the option."""
    most = int(options.get(name, -1))
    if most >= 0 or not math.isfinite(written):
        return max(1, most)
    return max(1, math.ceil(written))


def _bytes(run_dir: Path, train: Path, checkpoints: int) -> int:
    """Return the bytes that a run leaves, with this number of checkpoints."""
    saved = [path for path in train.glob("*.pt") if _SAVED.fullmatch(path.name)]
    largest = max((path.stat().st_size for path in saved), default=0)
    others = bytes_in(run_dir) - sum(path.stat().st_size for path in saved)
    return others + checkpoints * largest


def total_hours(hours: Sequence[float | None], slots: int) -> float | None:
    """Return the hours on this machine: members in order, each on the slot that is free first."""
    ends = [0.0] * slots
    for one in hours:
        if one is None:
            return None
        first = ends.index(min(ends))
        ends[first] += one
    return max(ends)
