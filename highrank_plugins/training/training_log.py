"""Read the numbers in the log of fairseq-train (`--log-format json`)."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

_ENTRY = re.compile(r"[^|]*\| INFO \| (train_inner|train|valid) \| (\{.*\})\s*")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) ")


@dataclass(frozen=True)
class Entry:
    """Hold one line of numbers. `kind`: train_inner (some updates), train (an epoch), valid."""

    kind: str
    stats: dict[str, Any]

    def number(self, name: str) -> float:
        return float(self.stats[name])


def parse(line: str) -> Entry | None:
    """Return the numbers in a line of the log, if it has any."""
    match = _ENTRY.fullmatch(line)
    return Entry(match[1], json.loads(match[2])) if match else None


class LoggedTraining(NamedTuple):
    """Hold a training run's command, and the result of `summarise` for its log."""

    command: str
    summary: dict[str, float]


# train.log of a recipe lacks what SLURM's job or another node has printed
_LOGS = ("train.log", "logs/rank0.log")


def read_training(folder: Path) -> LoggedTraining:
    """Read a training run that a recipe has run: `command.sh` and the logs of its `--save-dir`."""
    logs = [path for name in _LOGS if (path := folder / name).exists()] or [folder / _LOGS[0]]
    lines = (line for path in logs for line in path.read_text(encoding="utf-8").splitlines())
    command = (folder / "command.sh").read_text(encoding="utf-8").rstrip()
    names = ", ".join(map(str, logs))
    try:
        summary = summarise(lines)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{names}: a line of numbers is damaged: {error!r}") from None
    if "updates" not in summary:
        raise ValueError(
            f"{names}: no numbers of a training run; give the folder of one that was run with "
            "--log-format json"
        )
    if bad := [f"{name} is {value}" for name, value in summary.items() if not isfinite(value)]:
        raise ValueError(f"{names}: {', '.join(bad)}: the training run has diverged")
    return LoggedTraining(command, summary)


def summarise(lines: Iterable[str]) -> dict[str, float]:
    """Return updates, epochs, seconds, median words per second, losses and parameters.

    `seconds_per_epoch` is the median from one epoch's end to the next: training and validation.
    That of a single whole epoch is from the start of the run to the epoch's end.
    After a resume the log has some lines twice; the later ones count.
    """
    numbers: dict[str, float] = {}
    epochs: dict[int, Entry] = {}
    losses: dict[int, float] = {}
    last: dict[str, float] = {}
    updates_per_epoch = inf
    for line in lines:
        entry = parse(line)
        if entry is None:
            _note_numbers(line, numbers)
            continue
        if entry.kind == "train_inner" and entry.number("update") > 0:
            updates_per_epoch = entry.number("num_updates") / entry.number("update")
        if entry.kind == "train":
            epochs[int(entry.stats["epoch"])] = entry
        elif entry.kind == "valid":
            losses[int(entry.stats["valid_num_updates"])] = entry.number("valid_loss")
            continue
        prefix = "train_" if entry.kind == "train" else ""
        updates = entry.number(f"{prefix}num_updates")
        if updates >= last.get("updates", 0):  # several logs may overlap
            last = {"updates": updates, "wall_seconds": entry.number(f"{prefix}wall")}
    speeds = [entry.number("train_wps") for entry in epochs.values()]
    summary = {**last, "epochs": max(epochs, default=0)}
    if speeds:
        summary["words_per_second"] = round(median(speeds), 1)
    if seconds := _epoch_seconds(epochs, updates_per_epoch):
        summary["seconds_per_epoch"] = round(median(seconds), 1)
    if losses:
        summary["valid_loss"] = losses[max(losses)]
        summary["best_valid_loss"] = min(losses.values())
    return summary | numbers


def _epoch_seconds(epochs: dict[int, Entry], updates_per_epoch: float) -> list[float]:
    ends = {number: entry.number("train_wall") for number, entry in epochs.items()}
    if len(epochs) == 1:
        (only,) = epochs.values()
        # fairseq rounds the part of an epoch to 1/1000; a run may end within its first epoch
        is_whole = only.number("train_num_updates") > 0.99 * updates_per_epoch
        return list(ends.values()) if is_whole else []
    return [
        end - ends[number - 1]
        for number, end in ends.items()
        if number - 1 in ends and end > ends[number - 1]
    ]


def _note_numbers(line: str, numbers: dict[str, float]) -> None:
    if found := _PARAMETERS.search(line):
        numbers["parameters"] = int(found[1].replace(",", ""))
